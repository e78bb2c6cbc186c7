"""FSDP with a mixed precision of its own: no region says so, and the rules of loss scaling and of shards hold."""

from __future__ import annotations

import pytest

from tests.static.walked import ids

PROGRAM = """
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def train(model, loader, args):
    {wrap}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    {scaler}
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        {train}
"""
SHARDED = "model = FSDP(model.cuda(), mixed_precision=MixedPrecision({}))"
IN_PLACE = "fully_shard(model, mp_policy=MixedPrecisionPolicy({}))"
HALF, BRAIN = "param_dtype=torch.float16", "param_dtype=torch.bfloat16, reduce_dtype=torch.float32"
NONE = {"scaler": "pass", "train": "loss.backward(); optimizer.step()"}
STEPS = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
PLAIN = {"scaler": 'scaler = torch.amp.GradScaler("cuda")', "train": STEPS}
OWN = {"scaler": "scaler = ShardedGradScaler()", "train": STEPS}


@pytest.mark.parametrize(
    ("policy", "scaler", "expected"),
    [
        (SHARDED.format(HALF), NONE, {"AMP201"}),
        (SHARDED.format("torch.float16"), NONE, {"AMP201"}),
        (SHARDED.format(HALF), PLAIN, {"AMP703"}),
        (SHARDED.format(HALF), OWN, set()),
        (SHARDED.format(BRAIN), NONE, set()),
        (SHARDED.format(BRAIN), PLAIN, {"AMP213"}),
        (SHARDED.format(BRAIN), OWN, {"AMP213"}),
        (SHARDED.format("buffer_dtype=torch.float16"), NONE, set()),
        (IN_PLACE.format(HALF), NONE, {"AMP201"}),
        (IN_PLACE.format(HALF), PLAIN, set()),
        (IN_PLACE.format(BRAIN), NONE, set()),
        ("model = FSDP(model.cuda())", NONE, set()),
        ("policy = MixedPrecision(param_dtype=args.dtype); model = FSDP(model, mixed_precision=policy)", NONE, set()),
    ],
)
def test_the_dtype_of_parameters_is_that_of_the_training(
    policy: str, scaler: dict[str, str], expected: set[str]
) -> None:
    found = ids(PROGRAM.format(wrap=policy, **scaler))
    assert found & {"AMP201", "AMP213", "AMP703", "AMP704"} == expected - (
        {"AMP703"} if "AMP213" in expected else set()
    )


@pytest.mark.parametrize("policy", [HALF, BRAIN])
def test_shards_are_not_clipped_by_the_norm_of_one_rank(policy: str) -> None:
    clip = "loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()"
    own = "loss.backward(); model.clip_grad_norm_(1.0); optimizer.step()"
    wrapped = SHARDED.format(policy)
    assert "AMP704" in ids(PROGRAM.format(wrap=wrapped, scaler="pass", train=clip))
    assert "AMP704" not in ids(PROGRAM.format(wrap=wrapped, scaler="pass", train=own))
    assert "AMP704" not in ids(PROGRAM.format(wrap=IN_PLACE.format(policy), scaler="pass", train=clip))
    assert "AMP704" not in ids(PROGRAM.format(wrap="model = FSDP(model)", scaler="pass", train=clip))  # in float32


def test_a_policy_that_a_setting_chooses() -> None:
    source = """
        import torch
        import torch.nn.functional as F
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import MixedPrecision
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        HALF = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16)
        BRAIN = MixedPrecision(param_dtype=torch.bfloat16)


        def train(model, loader, args):
            model = FSDP(model.cuda(), mixed_precision=HALF if args.use_fp16 else BRAIN)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            scaler = ShardedGradScaler() if {test} else None
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x.cuda()), y.cuda())
                if {test}:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()
        """
    assert ids(source.format(test="args.use_fp16")) & {"AMP201", "AMP213"} == set()
    assert "AMP213" in ids(source.format(test="not args.use_fp16"))


def test_a_region_around_the_model_takes_precedence() -> None:
    source = PROGRAM.format(wrap=SHARDED.format(HALF), **NONE)
    around = source.replace("        loss = F", '        with torch.autocast("cuda", dtype=torch.bfloat16): loss = F')
    assert "AMP201" in ids(source) and "AMP201" not in ids(around)
