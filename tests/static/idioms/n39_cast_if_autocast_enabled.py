import torch
import torch.nn.functional as F
from torch import nn


def cast_if_autocast_enabled(tensor: torch.Tensor, dtype=None) -> torch.Tensor:
    if torch.is_autocast_enabled(tensor.device.type):
        return tensor.to(dtype=dtype if dtype is not None else torch.get_autocast_dtype(tensor.device.type))
    return tensor


class LayerNorm(nn.Module):
    def __init__(self, size, eps=1e-5, low_precision=False):
        super().__init__()
        self.normalized_shape, self.eps, self.low_precision = (size,), eps, low_precision
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        if not self.low_precision:
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        x = cast_if_autocast_enabled(x)
        weight, bias = cast_if_autocast_enabled(self.weight), cast_if_autocast_enabled(self.bias)
        with torch.autocast(enabled=False, device_type=x.device.type):
            return F.layer_norm(x, self.normalized_shape, weight=weight, bias=bias, eps=self.eps)


def train(loader):
    model = nn.Sequential(nn.Linear(32, 64), LayerNorm(64, low_precision=True), nn.Linear(64, 32)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x.cuda()), x.cuda())
        loss.backward()
        optimizer.step()
