import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function


class _grid_encode(Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, inputs, embeddings):
        inputs = inputs.contiguous()
        C = embeddings.shape[1]
        # half precision pays only where atomics come in pairs
        if torch.is_autocast_enabled("cuda") and C % 2 == 0:
            embeddings = embeddings.to(torch.half)
        index = inputs.long().clamp(0, embeddings.shape[0] - 1)
        ctx.save_for_backward(index)
        ctx.size = embeddings.shape
        return embeddings[index]

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        grad_embeddings = torch.zeros(ctx.size, dtype=grad.dtype, device=grad.device)
        grad_embeddings.index_add_(0, index, grad.contiguous())
        return None, grad_embeddings


class GridEncoder(nn.Module):
    def __init__(self, entries=2**14, level_dim=2):
        super().__init__()
        self.embeddings = nn.Parameter(torch.empty(entries, level_dim).uniform_(-1e-4, 1e-4))
        self.mlp = nn.Linear(level_dim, 3)

    def forward(self, inputs):
        return self.mlp(_grid_encode.apply(inputs, self.embeddings))


def train(loader):
    model = GridEncoder().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-15)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
