"""Programs do under audit exactly what they do without it: same numbers bit for bit, same output, same exit."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.runtime.drive import audited, plainly
from tests.runtime.more_programs import MORE

HEAD = """
import hashlib, random, sys
import torch
from torch import nn
from torch.nn import functional as F

random.seed(7)
torch.manual_seed(7)
torch.set_num_threads(1)

def digest(*modules):
    state = [value for module in modules for value in module.state_dict().values()]
    data = b"".join(value.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for value in state)
    print("weights", hashlib.sha256(data).hexdigest(), torch.rand(1).item(), random.random())

def batch(n=6, width=8, classes=3):
    return torch.randn(n, width), torch.randint(0, classes, (n,))
"""

PROGRAMS = {
    "plain loop": """
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for step in range(6):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
            print(step, loss.item())
        digest(model)
    """,
    "GradScaler float16": """
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
        for step in range(8):
            x, y = batch()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            print(step, loss.item(), norm.item(), scaler.get_scale())
        digest(model)
    """,
    "bfloat16 autocast, accumulation": """
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        for step in range(3):
            for micro in range(2):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = model(torch.randn(2, 5, 8)).float().pow(2).mean() / 2
                out.backward()
                print(step, micro, out.item())
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        digest(model)
    """,
    "checkpointing": """
        from torch.utils.checkpoint import checkpoint
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                block = lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.ReLU())
                self.blocks = nn.ModuleList(block() for _ in range(3))
                self.head = nn.Linear(8, 3)
            def forward(self, x):
                for n, block in enumerate(self.blocks):
                    x = checkpoint(block, x, use_reentrant=n == 1)
                return self.head(x)
        model = Net()
        optimizer = torch.optim.RMSprop(model.parameters())
        for step in range(4):
            x, y = batch()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            print(step, loss.item())
        digest(model)
    """,
    "closure": """
        model = nn.Linear(8, 3)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        x, y = batch()
        calls = 0
        def closure():
            global calls
            calls += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss
        for step in range(3):
            print(step, optimizer.step(closure).item(), calls)
        digest(model)
    """,
    "two optimizers": """
        make, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        one, two = torch.optim.Adam(make.parameters()), torch.optim.Adam(judge.parameters(), foreach=True)
        for step in range(4):
            fake = make(torch.randn(6, 4))
            loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(torch.randn(6, 8))).mean()
            two.zero_grad(); loss.backward(); two.step()
            other = F.softplus(-judge(fake)).mean()
            one.zero_grad(); other.backward(); one.step()
            print(step, loss.item(), other.item())
        digest(make, judge)
    """,
    "data loader workers": """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 12
            def __getitem__(self, n):
                noise = nn.Dropout(0.5)(torch.ones(8)) * torch.randn(8)
                return noise + n, n % 3
        def main():
            model = nn.Linear(8, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for context in ("fork", "spawn"):
                seed = torch.Generator().manual_seed(1)
                loader = torch.utils.data.DataLoader(
                    Data(), 4, num_workers=2, multiprocessing_context=context, generator=seed)
                for x, y in loader:
                    loss = F.cross_entropy(model(x), y)
                    optimizer.zero_grad(); loss.backward(); optimizer.step()
                    print(context, loss.item())
            digest(model)
        if __name__ == "__main__":
            main()
    """,
    "functions of its own, hooks": """
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x ** 3
            @staticmethod
            def backward(ctx, grad):
                return 3 * ctx.saved_tensors[0] ** 2 * grad
        model = nn.Linear(8, 3)
        model.weight.register_hook(lambda grad: grad * 2)
        model.register_full_backward_hook(lambda module, given, got: print("hook", got[0].shape))
        optimizer = torch.optim.Adagrad(model.parameters())
        for step in range(3):
            x, y = batch()
            loss = F.cross_entropy(Cube.apply(model(x)), y)
            first, = torch.autograd.grad(loss, model.bias, create_graph=True)
            (loss + first.pow(2).sum()).backward()
            optimizer.step(); optimizer.zero_grad()
            print(step, loss.item())
        digest(model)
    """,
    "dropout, batch norm, evaluation": """
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(144, 3))
        optimizer = torch.optim.NAdam(model.parameters())
        average = torch.optim.swa_utils.AveragedModel(model)
        for step in range(3):
            model.train()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.randint(0, 3, (4,)))
            loss.backward(); optimizer.step(); optimizer.zero_grad(); average.update_parameters(model)
            model.eval()
            with torch.no_grad():
                print(step, loss.item(), model(torch.randn(2, 1, 8, 8)).sum().item(), random.random())
        digest(model, average)
    """,
    "compiled": """
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        fast = torch.compile(model, backend="eager", fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            x, y = batch()
            loss = F.cross_entropy(fast(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item())
        digest(model)
    """,
    "warns": """
        import warnings
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(8, 3)
            def forward(self, x):
                warnings.warn("to the caller", stacklevel=2)
                warnings.warn("here")
                torch.searchsorted(torch.arange(10.0).view(2, 5), torch.ones(5, 2).t())
                torch.ones(2, 1).to(torch.complex64).to(torch.float32)
                return self.inner(x)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
        for step in range(3):
            F.cross_entropy(model(batch()[0]), torch.arange(6) % 3).backward(); optimizer.step()
        digest(model)
    """,
    "raises": """
        model = nn.Sequential(nn.Linear(8, 3), nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            x, y = batch(width=8 if step < 2 else 9)
            loss = F.cross_entropy(model(x), y)
            loss.backward(); optimizer.step()
            print(step, loss.item())
    """,
    "catches and goes on": """
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            try:
                x, y = batch(width=8 if step != 1 else 9)
                loss = F.cross_entropy(model(x), y)
            except RuntimeError as error:
                print("caught", error)
                continue
            loss.backward(); optimizer.step(); optimizer.zero_grad()
        digest(model)
        sys.exit(3)
    """,
    "names, arguments and streams": """
        import os, pickle
        class Config: pass
        print(sys.argv, __name__, __file__, sys.path[0], os.getcwd(), len(sys.path))
        print(pickle.loads(pickle.dumps(Config())).__class__, sys.flags, __spec__)
        print(sys.modules["__main__"].__dict__ is globals())
        print(sys.stdin.read(), sorted(set(sys.modules) & {"libcst", "yaml", "rich"}))
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            F.cross_entropy(model(batch()[0]), torch.arange(6) % 3).backward(); optimizer.step()
        sys.stdout.buffer.write(b"\\xff\\x00")
        digest(model)
        print("to stderr", file=sys.stderr)
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_without_us(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + textwrap.dedent(PROGRAMS[name]), encoding="utf-8")
    command = ["train.py", "--lr", "1e-3", "-m"]
    plain = plainly(command, tmp_path, input=b"a line")
    watched = audited(command, tmp_path, go_on=True, options={"input": b"a line"})
    assert watched.stdout == plain.stdout
    assert watched.code == plain.code == {"raises": 1, "catches and goes on": 3}.get(name, 0)
    assert user_frames(watched.stderr) == user_frames(plain.stderr)
    assert b"amp_audit" not in watched.stderr
    assert name == "raises" or watched.stderr == plain.stderr
    trace = watched.trace
    assert trace.end is not None and trace.end.steps >= 2
    notes = [note for step in trace.steps for note in step.notes]
    assert [note for note in notes if "torch.compile" not in note] == []
    assert all(step.recorded and step.ops for step in trace.steps if not step.open)
    assert any(step.deep for step in trace.steps)


@pytest.mark.parametrize("name", MORE)
def test_it_does_so_with_every_operator_run_twice(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + textwrap.dedent(MORE[name]), encoding="utf-8")
    plain = plainly(["train.py"], tmp_path)
    watched = audited(["train.py"], tmp_path, go_on=True, sample="all", deep="all")
    assert (watched.stdout, watched.stderr, watched.code) == (plain.stdout, plain.stderr, plain.code)
    assert plain.code == 0 and plain.stdout, plain.stderr
    trace = watched.trace
    assert trace.end is not None and trace.end.steps >= 2
    assert [note for step in trace.steps for note in step.notes] == []
    assert all(step.recorded and step.deep and step.ops for step in trace.steps)


def user_frames(text: bytes) -> list[str]:
    """Standard error without the frames of torch, whose number depends on hooks."""
    lines = text.decode().splitlines()
    kept: list[str] = []
    skipping = False
    for line in lines:
        if line.startswith("  File "):
            skipping = "site-packages" in line
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(re.sub(r"0x[0-9a-f]+", "0x", line))
    return kept


def test_a_module_runs_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "other.py").write_text("WIDTH = 8\n")
    text = HEAD + textwrap.dedent(PROGRAMS["plain loop"])
    (tmp_path / "package" / "train.py").write_text(
        f"from .other import WIDTH\n{text}\nprint(sys.argv, __spec__.name)\n"
    )
    plain = plainly(["-m", "package.train", "x"], tmp_path)
    watched = audited(["package.train", "x"], tmp_path, kind="module", go_on=True)
    assert (watched.stdout, watched.code) == (plain.stdout, 0)
    assert len(watched.trace.steps) == 6


def test_after_enough_steps_nothing_is_left_of_us(tmp_path: Path) -> None:
    text = HEAD + textwrap.dedent("""
        before = nn.Module.__call__, torch.Tensor.backward, torch.autocast.__enter__, torch.save, sys.excepthook
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            F.cross_entropy(model(batch()[0]), torch.arange(6) % 3).backward(); optimizer.step(); optimizer.zero_grad()
        after = nn.Module.__call__, torch.Tensor.backward, torch.autocast.__enter__, torch.save, sys.excepthook
        print([function.__module__ for function in after])
        print(torch._C._len_torch_dispatch_stack(), sys.excepthook is sys.__excepthook__)
        hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
        print(len(nn.modules.module._global_forward_hooks), len(hooks))
    """)
    (tmp_path / "train.py").write_text(text)
    watched = audited(["train.py"], tmp_path, steps=3, go_on=True)
    last = watched.stdout.decode().splitlines()
    assert last[-3:] == [
        "['torch.nn.modules.module', 'torch._tensor', 'torch.amp.autocast_mode', 'torch.serialization', 'sys']",
        "0 True",
        "0 0",
    ]
    assert (len(watched.trace.steps), watched.trace.end.steps, watched.trace.end.reason) == (3, 3, "finished")
    assert not watched.outcome.stopped
