"""The newest torch and Lightning that what a program declares lets in."""

from __future__ import annotations

import pytest

from amp_audit.static.source.pins import newest


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("numpy\ntorch==1.13.1\ntqdm", (1, 13)),
        ("torch==2.1.0+cu118", (2, 1)),
        ("torch == 2.1.*", (2, 1)),
        ("torch>=1.8,<2.0", (1, 999)),
        ("torch>=1.8,<2.3", (2, 2)),
        ("torch<2.3.1", (2, 3)),
        ("torch~=2.1.0", (2, 1)),
        ("torch~=2.1", (2, 999)),
        ("torch[opt-einsum]<=2.4 ; python_version < '3.12'", (2, 4)),
        ("torch>=1.8", None),
        ("torch", None),
        ("torch!=2.1.0", None),
        ("torchvision==0.14\ntorch-geometric==2.3\ntorch_scatter<3", None),
        ("--find-links https://download.pytorch.org/whl/torch_stable.html", None),
        ("torch==1.13.1\n\ntorch  # whichever", None),
        ("# torch==1.8 was here\ntorch==1.13.1", (1, 13)),
        ("dependencies:\n  - pytorch=1.12.1=py3.9_cuda11\n  - pip:\n    - torch==1.10.0", (1, 12)),
        ("  - pytorch::pytorch=1.12", (1, 12)),
        ("install_requires=['numpy', 'torch>=1.6,<1.9']", (1, 8)),
        ('dependencies = ["torch==2.0.1", "numpy"]', (2, 0)),
        ('dependencies = ["torch", "numpy"]', None),
        ('torch = "^1.13"\nnumpy = "*"', (1, 999)),
        ('torch = "2.2.1"', (2, 2)),
        ("torch @ https://download.pytorch.org/whl/cu118/torch-2.0.1%2Bcu118-cp310-cp310-linux_x86_64.whl", (2, 0)),
        ('import torch\nname = "torch_thing"', None),
    ],
)
def test_the_newest_release_that_is_let_in(declared: str, expected: tuple[int, int] | None) -> None:
    assert newest([declared]).torch == expected


def test_of_several_files_the_newest_counts_and_all_must_bound_it() -> None:
    assert newest(["torch==1.8", "  - pytorch=1.10"]).torch == (1, 10)
    assert newest(["torch==1.8", "torch>=1.6"]).torch is None


def test_a_script_says_it_of_itself() -> None:
    script = '# /// script\n# dependencies = [\n#   "torch==2.5.1",\n# ]\n# ///\nimport torch\n'
    assert newest([], [script]).torch == (2, 5)
    assert newest([], ['# dependencies = ["torch==2.5.1"]\nimport torch\n']).torch is None


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("pytorch-lightning==1.7.7\ntorch==1.11", (1, 7)),
        ("pytorch_lightning>=1.3.1,<=1.4.2", (1, 4)),
        ("  - pip:\n    - lightning<2.0", (1, 999)),
        ("lightning>=2.1", None),
        ("pytorch-lightning @ git+http://github.com/somebody/pytorch-lightning.git@v0.8.5_fixes#egg=pl", (0, 8)),
        ("pytorch-lightning @ git+ssh://git@github.com/somebody/pytorch-lightning.git", None),
        ("lightning-utilities==0.9\nlightning_fabric==1.9", None),
        ("torch==1.11", None),
    ],
)
def test_the_newest_lightning(declared: str, expected: tuple[int, int] | None) -> None:
    assert newest([declared]).lightning == expected


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("transformers==4.38.2\ntorch==2.2", (4, 38)),
        ('dependencies = ["transformers[torch]>=4.40,<5"]', (4, 999)),
        ("transformers>=4.40", None),
        ("sentence-transformers==2.2\n", None),
    ],
)
def test_the_newest_transformers(declared: str, expected: tuple[int, int] | None) -> None:
    assert newest([declared]).transformers == expected
