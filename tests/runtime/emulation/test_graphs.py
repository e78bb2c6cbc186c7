"""CUDA graphs on the emulated device: a replay is what the captured operators do, no more and no less."""

from __future__ import annotations

import pytest

from tests.runtime.emulation.emulating import emulate

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)

TRAINING = """
def make():
    torch.manual_seed(1)
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 2)
    return nn.Sequential(*layers).cuda()

torch.manual_seed(0)
data = [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(4)]

def step(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)

def plain():
    model = make(); optimizer = adam(model)
    return [step(model, optimizer, x.cuda(), y.cuda()).item() for x, y in data], model

def graphed():
    model = make(); optimizer = adam(model)
    x, y = torch.zeros(4, 8, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda")
    begin = {key: value.clone() for key, value in model.state_dict().items()}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step(model, optimizer, x, y)
    model.load_state_dict(begin)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tell(torch.cuda.is_current_stream_capturing())
        loss = step(model, optimizer, x, y)
    tell(all(torch.equal(value, begin[key]) for key, value in model.state_dict().items()))
    losses = []
    for one, label in data:
        x.copy_(one); y.copy_(label)
        graph.replay()
        losses.append(loss.item())
    return losses, model
"""


def test_training_steps_replayed_are_training_steps() -> None:
    told = emulate(
        TRAINING
        + """
(here, one), (there, other) = plain(), graphed()
tell(here == there, len(set(here)) == 4)
tell(all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values())))
"""
    )
    assert told == [[True], [True], [True, True], [True]]


def test_callables_made_of_graphs_compute_what_they_were_made_of() -> None:
    told = emulate(
        TRAINING
        + """
model, twin = make(), make()
graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda", requires_grad=True),))
twin.load_state_dict(model.state_dict())
for x, _ in data:
    norms = []
    for one in (graphed, twin):
        z = x.cuda().requires_grad_()
        one(z).square().mean().backward()
        norms += [z.grad.norm().item(), one[0].weight.grad.norm().item()]
        with torch.no_grad():
            for p in one.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    tell(norms[:2] == norms[2:])
"""
    )
    assert told == [[True]] * 4


def test_random_numbers_go_on_from_replay_to_replay() -> None:
    told = emulate("""
        torch.cuda.manual_seed(3)
        plain = [torch.rand(3, device="cuda").tolist() for _ in range(2)]
        torch.cuda.manual_seed(3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): out = torch.rand(3, device="cuda")
        graph.replay(); one = out.tolist()
        graph.replay(); tell([one, out.tolist()] == plain)
    """)
    assert told == [[True]]


def test_what_a_graph_cannot_hold_is_refused_as_on_cuda() -> None:
    told = emulate("""
        x = torch.ones(3, device="cuda")
        def within(function):
            def capture():
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    function()
            return refused(capture)
        for wait in (lambda: x.sum().item(), lambda: x.cpu(), lambda: x.nonzero(), torch.cuda.synchronize):
            tell(within(wait), torch.cuda.is_current_stream_capturing())
        graph = torch.cuda.CUDAGraph()
        tell(refused(graph.replay), refused(graph.capture_end))
        with torch.cuda.graph(graph): y = x + 1
        tell(refused(graph.capture_begin), refused(graph.raw_cuda_graph))
        x.fill_(5); graph.replay(); tell(y.tolist(), graph.pool() is not None)
        graph.reset(); tell(refused(graph.replay))
    """)
    refusal = "RuntimeError: CUDA error: operation not permitted when stream is capturing"
    assert told[:4] == [[refusal, False]] * 4
    assert told[4] == [
        "RuntimeError: Called CUDAGraph::replay without a preceding successful capture.",
        "RuntimeError: capture_end() called before capture_begin().",
    ]
    assert "already owns a captured graph" in told[5][0]
    assert "amp-audit cannot emulate the driver's graph" in told[5][1]
    assert told[6:] == [[[6.0] * 3, True], [told[4][0]]]
