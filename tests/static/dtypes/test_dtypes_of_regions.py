"""Tensors that cross the borders of regions: AMP306, AMP308, AMP309, AMP310."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import filled, misjudged

LOOP = """
    import torch
    import torch.nn.functional as F
    from contextlib import nullcontext
    from torch import nn

    def to_float(outputs):
        return {key: value.float() for key, value in outputs.items()}

    def train(model, criterion, loader, optimizer, scaler, args, device):
        model.train()
        head = nn.Linear(8, 8)
        for x, y in loader:
            BODY
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize(
    "body",
    [
        "with torch.autocast('cuda'):\n    out = model(x)\nloss = F.cross_entropy(out, y)  # AMP309",
        "with torch.autocast('cuda'):\n    out = model(x)\nloss = F.cross_entropy(out / 0.1 + 1, y)  # AMP309",
        "with torch.autocast('cuda'):\n    out = model.module(x)['logits']\nloss = F.cross_entropy(out, y)  # AMP309",
        "with torch.autocast('cuda'):\n    out, _ = model.infer(x)\n"
        "loss = F.nll_loss(out.log_softmax(-1), y)  # AMP309",
        "with torch.autocast('cuda'):\n    out = head(x)\nloss = nn.KLDivLoss()(out, y)  # AMP309",
        "with torch.autocast('cuda') if args.amp else nullcontext():\n    out = head(x)\n"
        "loss = nn.CrossEntropyLoss()(out.view(-1, 2), y)  # AMP309",
        "if scaler is not None:\n    with torch.autocast('cuda'):\n        out = head(x)\nelse:\n    out = head(x)\n"
        "loss = F.cross_entropy(out, y)  # AMP309",
        "if args.precision == 'fp32':\n    out = head(x)\nelse:\n    with torch.autocast('cuda'):\n"
        "        out = head(x)\n"
        "loss = F.cross_entropy(out, y)  # AMP309",
        "with torch.autocast('cuda'):\n    out = head(x)\nwith torch.autocast('cuda', enabled=False):\n"
        "    loss = F.cross_entropy(out, y)  # AMP308",
        "with torch.autocast('cuda'):\n    out = model(x)\nwith torch.autocast('cuda', enabled=False):\n"
        "    loss = criterion(out, y)  # AMP308",
        "with torch.autocast('cuda'):\n    out = head(x)\n    with torch.autocast('cuda', enabled=False):\n"
        "        loss = out.exp().mean()  # AMP308",
    ],
)
def test_low_precision_goes_along(body: str) -> None:
    assert misjudged(train=filled(LOOP, body)) == []


@pytest.mark.parametrize(
    "body",
    [
        "with torch.autocast('cuda'):\n    loss = F.cross_entropy(model(x), y)",
        "with torch.autocast('cuda'):\n    out = model(x)\nloss = F.cross_entropy(out.float(), y)",
        "with torch.autocast('cuda'):\n    out = model(x).float()\nloss = F.cross_entropy(out, y)",
        "with torch.autocast('cuda', enabled=False):\n    out = model(x)\nloss = F.cross_entropy(out, y)",
        "out = model(x)\nloss = F.cross_entropy(out, y)",
        "with torch.autocast('cuda'):\n    out = model(x)\nloss = out.loss",
        "with torch.autocast('cuda'):\n    out = model(x)\nloss = out['loss'] + F.huber_loss(out['loss_box'], y)",
        "with torch.autocast('cuda'):\n    out = criterion(model(x), y)\nloss = F.nll_loss(out, y)",
        "with torch.autocast('cuda'):\n    out = model(x)\nout = to_float(out) if scaler.is_enabled() else out\n"
        "loss = F.cross_entropy(out['a'], y)",
        "with torch.autocast('cuda'):\n    out = head(x)\nloss = F.mse_loss(out, x.float())",
        "with torch.autocast('cuda'):\n    out = head(x)\nif out.dtype == torch.float16:\n    out = out.float()\n"
        "loss = F.cross_entropy(out, y)",
        "if args.amp:\n    with torch.autocast('cuda'):\n        out = head(x).float()\nelse:\n"
        "    out = head(x).half()\n"
        "loss = F.cross_entropy(out, y)",
        "with torch.autocast('cuda'):\n    out = head(x)\nwith torch.autocast('cuda', enabled=False):\n"
        "    loss = F.cross_entropy(out.float(), y)",
        "with torch.autocast('cuda'):\n    out = model(x)\nout = to_float(out)\n"
        "with torch.autocast('cuda', enabled=False):\n    loss = criterion(out, y)",
        "with torch.autocast('cuda'):\n    out = head(x).softmax(-1)\nwith torch.autocast('cuda', enabled=False):\n"
        "    loss = out.log().mean()",
    ],
)
def test_what_stays_or_becomes_float32(body: str) -> None:
    assert misjudged(train=filled(LOOP, body)) == []


CHOSEN_APART = """
import torch
from contextlib import suppress


def region(precision):
    if precision == "amp":
        return torch.cuda.amp.autocast
    elif precision == "amp_bf16":
        return lambda: torch.autocast("cuda", dtype=torch.bfloat16)
    else:
        return suppress


def cast_dtype(precision):
    chosen = None
    if precision == "bf16":
        chosen = torch.bfloat16
    elif precision == "fp16":
        chosen = torch.float16
    return chosen


def train(model, loader, optimizer, scaler, args, loss):
    autocast, dtype = {autocast}, {dtype}
    model.train()
    for images, texts in loader:
        images = images.to(device="cuda", dtype=dtype)
        optimizer.zero_grad()
        with autocast():
            features = model(images, texts)
            total = loss(features)
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("autocast", "dtype"),
    [
        ("region(args.precision)", "cast_dtype(args.precision)"),
        ("torch.cuda.amp.autocast", "cast_dtype(args.precision)"),
        ("torch.cuda.amp.autocast", "torch.bfloat16"),
    ],
)
def test_a_cast_and_a_region_that_one_setting_chooses(autocast: str, dtype: str) -> None:
    source = CHOSEN_APART.format(autocast=autocast, dtype=dtype)
    assert (
        misjudged(main=source.replace("autocast():", "autocast():  # AMP306") if dtype == "torch.bfloat16" else source)
        == []
    )


def test_attention_is_asked_about_its_query_key_and_value() -> None:
    """With weights of their own for each, what stands for those of all may be any tensor."""
    source = """
        import torch
        import torch.nn.functional as F

        @torch.inference_mode()
        def attend(q, k, weights):
            q, k = q.half(), k.ONE()
            return F.multi_head_attention_forward(
                q, k, k, 8, 2, torch.empty([0]), weights.bias, None, None, False, 0.0, weights.out, weights.out_bias,
                use_separate_proj_weight=True, q_proj_weight=weights.q,
            )
    """
    assert misjudged(main=source.replace("ONE", "half")) == []
    marked = source.replace("ONE", "float").replace("forward(\n", "forward(  # AMP310\n")
    assert misjudged(main=marked) == []


@pytest.mark.parametrize(
    ("test", "first", "second"),
    [
        ("self.device != 'cpu'", "", "  # AMP407"),
        ("not self.device == 'cpu'", "", "  # AMP407"),
        ("self.device == 'cpu'", "  # AMP407", ""),
        ("self.ready", "  # AMP407", "  # AMP407"),
    ],
)
def test_a_region_is_off_where_a_test_says_that_its_condition_does_not_hold(test: str, first: str, second: str) -> None:
    source = f"""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, device="cpu"):
                super().__init__()
                self.device = device
                self.out = nn.Linear(8, 4)

            def forward(self, x):
                return torch.log_softmax(self.out(x), -1), self.out(x)

            def policy(self, x):
                with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device != "cpu"):
                    return self(x)[0].exp().cpu().numpy()

            def predict(self, x):
                with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device != "cpu"):
                    p, v = self(x)
                if {test}:
                    return p.float().cpu().numpy(), v.float().cpu().numpy()
                return p.numpy(), v.numpy()

            def again(self, x):
                with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device != "cpu"):
                    p, v = self(x)
                if {test}:
                    return v.numpy(){second}
                return v.numpy(){first}
    """
    predicted = "return p.numpy(), v.numpy()"
    assert misjudged(train=source.replace(predicted, f"{predicted}{first}")) == []


GIVEN = """
    import torch
    from torch import nn
    from transformers import AutoModel

    def train(teacher, loader):
        head = nn.Linear(8, 2).cuda()
        BODY
"""


@pytest.mark.parametrize(
    "body",
    [
        "teacher = teacher.half().eval()\nfor x in loader:\n    print(head(teacher(x.half())))  # AMP310",
        "teacher.to(torch.bfloat16)\nfor x in loader:\n    print(head(teacher(x.bfloat16())))  # AMP310",
        "teacher.half()\nfor x in loader:\n    print(head(teacher(x.half()).float()))",
        "teacher.half()\nfor x in loader:\n    print(head(teacher(x)))",
        "teacher.half()\nteacher.float()\nfor x in loader:\n    print(head(teacher(x.half())))",
        "teacher.half()\nhead.half()\nfor x in loader:\n    print(head(teacher(x.half())))",
        "for x in loader:\n    print(head(teacher(x.half())))",
        "teacher.half()\nfor x in loader:\n    with torch.autocast('cuda'):\n        print(head(teacher(x.half())))",
        "net = AutoModel.from_pretrained('n', torch_dtype=torch.float16)\nout = net(loader)\n"
        "print(head(out.last_hidden_state[:, 0]))  # AMP310",
        "net = AutoModel.from_pretrained('n', torch_dtype=torch.float16)\nprint(head(net(loader)[0]))",
    ],
)
def test_what_a_model_out_of_sight_returns_that_was_cast(body: str) -> None:
    assert misjudged(train=filled(GIVEN, body)) == []
