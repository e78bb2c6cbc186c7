"""Models that are cast, and what becomes of them."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import TRAIN, filled, messages, misjudged, rule_of

CASTS = """
    import copy
    import torch
    from accelerate import Accelerator
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 8)
            self.head = nn.Linear(8, 2)

    def train(loader, model, args):
        BODY
        for x in loader:
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    "body",
    [
        "model.half()  # AMP402\noptimizer = torch.optim.SGD(model.parameters())",
        "model = model.cuda().to(torch.bfloat16)  # AMP402\noptimizer = torch.optim.SGD(list(model.parameters()))",
        "optimizer = torch.optim.SGD(model.parameters())\nmodel.half()  # AMP402",
        "model.encoder.bfloat16()  # AMP402\noptimizer = torch.optim.SGD(model.parameters())",
        "model = Net()\nmodel.body.to(dtype=torch.float16)  # AMP402\n"
        "optimizer = torch.optim.SGD([{'params': model.body.parameters()}, {'params': model.head.parameters()}])",
        "if args.fp16:\n    model = model.half()  # AMP402\n"
        "optimizer = torch.optim.Adam(params=model.parameters())  # AMP411",
        "model = nn.parallel.DistributedDataParallel(model.half())  # AMP402\n"
        "optimizer = torch.optim.SGD(model.module.parameters())",
        "model = model.type(torch.half)  # AMP402\noptimizer = torch.optim.SGD(model.parameters())",
    ],
)
def test_trained_models_that_are_cast(body: str) -> None:
    assert misjudged(train=filled(CASTS, body)) == []


@pytest.mark.parametrize(
    "body",
    [
        "optimizer = torch.optim.SGD(model.parameters())",
        "model.half().float()\noptimizer = torch.optim.SGD(model.parameters())",
        "model = model.half()\nmodel = model.to(torch.float32)\noptimizer = torch.optim.SGD(model.parameters())",
        "teacher = copy.deepcopy(model).half()\noptimizer = torch.optim.SGD(model.parameters())",
        "model.teacher.half()\noptimizer = torch.optim.SGD(model.student.parameters())",
        "model.half()\nfor p in model.parameters():\n    p.requires_grad = False\n"
        "optimizer = torch.optim.SGD(args.extra.parameters())",
        "model.half()\noptimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()))",
        "model, optimizer = Accelerator().prepare(model.half(), torch.optim.SGD(model.parameters()))",
        "model.half()\noptimizer = args.build(model.parameters())",
        "model.to(args.device)\noptimizer = torch.optim.SGD(model.parameters())",
        "model.to(args.dtype)\noptimizer = torch.optim.SGD(model.parameters())",
        "loader = [x.half() for x in loader]\noptimizer = torch.optim.SGD(model.parameters())",
    ],
)
def test_casts_that_train_nothing_low(body: str) -> None:
    assert misjudged(train=filled(CASTS, body)) == []


def test_a_cast_after_the_training() -> None:
    assert (
        misjudged(
            train="""
        import torch

        def train(model, loader):
            optimizer = torch.optim.SGD(model.parameters())
            for x in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).sum()
                loss.backward()
                optimizer.step()
            model.half()
            torch.save(model.state_dict(), "model.pt")
        """
        )
        == []
    )


def test_the_optimizer_is_built_in_another_file() -> None:
    assert (
        misjudged(
            optim="""
        import torch

        def build(model, lr):
            return torch.optim.AdamW(model.parameters(), lr=lr)
        """,
            train="""
        import torch
        from optim import build

        def train(model, loader):
            model = model.to(torch.bfloat16)  # AMP401
            optimizer = build(model, 1e-4)
            for x in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).sum()
                loss.backward()
                optimizer.step()
        """,
        )
        == []
    )


@pytest.mark.parametrize(
    ("imported", "scaled", "plain", "eps"),
    [
        ("from torch.optim import AdamW", "  # AMP403", "  # AMP402", "  # AMP411"),
        ("from transformers import AdamW", "  # AMP403", "  # AMP402", ""),
        ("from transformers.optimization import AdamW", "  # AMP403", "  # AMP402", ""),
        ("from mine import AdamW", "", "", ""),
    ],
)
def test_an_adamw_of_another_library_trains_the_parameters_as_they_are(
    imported: str, scaled: str, plain: str, eps: str
) -> None:
    """Its own eps of 1e-6 is no zero in float16."""
    source = f"""
        import torch
        {imported}

        def train(model, loader, scaler):
            model.half(){scaled}
            optimizer = AdamW(model.parameters(), lr=1e-5)
            for x in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).sum()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        def train_half(model, loader):
            model.half(){plain}
            optimizer = AdamW(model.parameters(), lr=1e-5){eps}
            for x in loader:
                loss = model(x.half()).sum()
                loss.backward()
                optimizer.step()
    """
    assert misjudged(train=source) == []


@pytest.mark.parametrize("step", ["scaler.step(optimizer)", "scaler.unscale_(optimizer)"])
def test_half_parameters_with_a_scaler_can_be_told(step: str) -> None:
    own = rule_of(
        op="cast", inputs=["float16"], when={"trained": True, "scaler": True}, message="{name} as {dtype} {x}"
    )
    source = f"""
        import torch

        def train(model, scaler):
            model.half()
            optimizer = torch.optim.SGD(model.parameters())
            {step}
    """
    assert messages(source, own) == ["model as float16 {x}"]
    assert messages(source.replace(step, "optimizer.step()"), own) == []
    assert messages(source.replace("half()", "bfloat16()"), own) == []


@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD(model.parameters())",
        "Adam(model.parameters(), eps=1e-4)",
        "AdamW(model.parameters(), fused=True)",
        "Adadelta(model.parameters())",
        "AdamW(model.parameters(), eps=args.eps)",
    ],
)
def test_optimizers_whose_eps_stays(optimizer: str) -> None:
    assert misjudged(train=filled(CASTS, f"model.half()  # AMP402\noptimizer = torch.optim.{optimizer}")) == []


def test_bfloat16_holds_the_eps_of_adam() -> None:
    assert (
        misjudged(train=filled(CASTS, "model.bfloat16()  # AMP402\noptimizer = torch.optim.Adam(model.parameters())"))
        == []
    )


SCALED = """
    import torch
    from torch.amp import GradScaler

    def train(loader, model, args, scaler):
        model.half()COMMENT
        BODY
        for x in loader:
            loss = model(x).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("optimizer = torch.optim.SGD(model.parameters())\nscaler = GradScaler()", "AMP403"),
        ("optimizer = torch.optim.SGD(model.parameters())\nscaler = GradScaler(enabled=args.amp)", "AMP403"),
        ("optimizer = torch.optim.SGD(model.parameters())", "AMP403"),
        ("optimizer = torch.optim.SGD(model.parameters())\nscaler = GradScaler(enabled=False)", "AMP402"),
        ("optimizer = torch.optim.SGD(model.parameters(), fused=True)\nscaler = GradScaler()", "AMP402"),
        ("optimizer = torch.optim.SGD(model.parameters(), fused=True)\nscaler.unscale_(optimizer)", "AMP403"),
    ],
)
def test_float16_parameters_under_a_scaler(body: str, rule: str) -> None:
    assert misjudged(train=filled(SCALED.replace("COMMENT", f"  # {rule}"), body)) == []


@pytest.mark.parametrize(
    ("wrapper", "comment"),
    [("", "  # AMP408"), ("@restoring", "")],
)
def test_a_default_dtype_that_a_decorator_restores(wrapper: str, comment: str) -> None:
    assert (
        misjudged(
            train=f"""
        import torch
        from tools import restoring
        from torch import nn

        {wrapper}
        def load(path):
            torch.set_default_dtype(torch.float16){comment}
            return nn.Linear(2, 2).float() if path else None

        def train(loader):
            teacher = load("teacher")
            model = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters())
            for x in loader:
                model(x).sum().backward()
                optimizer.step()
        """
        )
        == []
    )


def test_a_model_is_said_to_run_under_autocast_where_it_does() -> None:
    """Another program of the project has a region; that this model's class could run there is not what it does."""
    net = """
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                return self.layer(x)
    """
    half = """
        import torch
        from net import Net

        model = Net().half(){mark}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        {region}
        loss.backward()
        optimizer.step()
    """
    plain = "loss = model(torch.randn(4).half()).sum()"
    under = 'with torch.autocast("cuda"):\n            loss = model(torch.randn(4)).sum()'
    assert (
        misjudged(
            net=net, main=TRAIN.replace("from model", "from net"), half=half.format(mark="  # AMP402", region=plain)
        )
        == []
    )
    assert (
        misjudged(
            net=net, main=TRAIN.replace("from model", "from net"), half=half.format(mark="  # AMP401", region=under)
        )
        == []
    )


ALL = "self.model.parameters()"


@pytest.mark.parametrize(
    ("half", "full", "mark"),
    [("self.master", ALL, ""), (ALL, ALL, "  # AMP402"), (ALL, "self.master", "  # AMP402")],
)
def test_an_optimizer_of_the_arm_in_full_precision_does_not_train_what_the_other_arm_has_cast(
    half: str, full: str, mark: str
) -> None:
    source = f"""
        import torch

        class Trainer:
            def __init__(self, model, fp16):
                self.model, self.fp16 = model, fp16
                if self.fp16:
                    self.model = self.model.half(){mark}
                    self.master = [p.detach().clone().float() for p in self.model.parameters()]

            def train(self, loader):
                if self.fp16:
                    optimizer = torch.optim.SGD({half}, 0.1)
                else:
                    optimizer = torch.optim.SGD({full}, 0.1)
                for x in loader:
                    loss = self.model(x).mean()
                    loss.backward()
                    optimizer.step()
    """
    assert misjudged(train=source) == []


FLAGGED = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    def main(args, loader):
        model = nn.Linear(8, 2).cuda()
        if CAST:
            model = model.half()  # AMP402
        amp = args.amp and not args.pure_half
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = SCALER
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=REGION):
                loss = F.cross_entropy(model(x), y)
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
"""


@pytest.mark.parametrize(
    ("cast", "scaler", "region", "rule"),
    [
        ("args.pure_half", "torch.amp.GradScaler('cuda', enabled=amp)", "amp", "AMP402"),
        ("args.pure_half", "torch.amp.GradScaler('cuda') if not args.pure_half else None", "amp", "AMP402"),
        ("args.mode == 'half'", "torch.amp.GradScaler('cuda') if args.mode == 'amp' else None", "amp", "AMP401"),
        ("args.mode == 'half'", "torch.amp.GradScaler('cuda', enabled=args.amp)", "args.amp", "AMP403"),
        ("args.pure_half", "torch.amp.GradScaler('cuda') if args.pure_half else None", "amp", "AMP403"),
    ],
)
def test_flags_that_exclude_one_another(cast: str, scaler: str, region: str, rule: str) -> None:
    program = FLAGGED.replace("CAST", cast).replace("SCALER", scaler).replace("REGION", region)
    assert misjudged(train=program.replace("AMP402", rule)) == []


APART = """
    import torch

    OTHER

    def main(mode, half, default, model, loader):
        BEFORE
        if CAST:
            model.half()MARK
            AFTER
        if TRAINS:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
"""
MEANS = "half = mode == 'fp16'"


@pytest.mark.parametrize(
    ("other", "before", "cast", "after", "trains", "apart"),
    [
        ("pass", MEANS, "half", "pass", "mode == 'sgd'", True),
        (f"def other(mode):\n    {MEANS}\n    return half", "pass", "half", "pass", "mode == 'sgd'", False),
        (f"mode = loader\n{MEANS}", "pass", "half", "pass", "mode == 'sgd'", False),
        ("pass", f"{MEANS}\nhalf = half_of(model)", "half", "pass", "mode == 'sgd'", False),
        ("pass", f"if default:\n    {MEANS}", "half", "pass", "mode == 'sgd'", False),
        ("pass", "if default:\n    low = mode == 'fp16'\nelse:\n    low = True", "low", "pass", "mode == 'sgd'", False),
        ("pass", "pass", "mode == default", "pass", "mode == 'amp'", False),
        ("pass", "pass", "mode == 1", "pass", "mode == 2", True),
        ("pass", "pass", "mode == 1", "mode = 2", "mode == 2", False),
        ("pass", "mode = mode or default", "mode == 1", "pass", "mode == 2", True),
    ],
)
def test_conditions_are_on_the_names_of_the_function_as_they_are_there(
    other: str, before: str, cast: str, after: str, trains: str, apart: bool
) -> None:
    program = filled(APART.replace("OTHER", "BODY"), other)
    program = filled(program.replace("BEFORE", "BODY"), before)
    program = program.replace("CAST", cast).replace("AFTER", after).replace("TRAINS", trains)
    assert misjudged(train=program.replace("MARK", "" if apart else "  # AMP402")) == []


@pytest.mark.parametrize(("again", "rule"), [("else", "AMP403"), ("if flag", "AMP402")])
def test_under_what_a_function_is_called_again_is_kept(again: str, rule: str) -> None:
    source = f"""
        import torch

        def run(model, loader, optimizer, scaler):
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        def main(flag, model, loader):
            scaler = torch.amp.GradScaler("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if flag:
                run(model, loader, optimizer, scaler)
            {again}:
                run(model, loader, optimizer, scaler)
            if not flag:
                model.half()  # {rule}
            for x in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
    """
    assert misjudged(train=source) == []
