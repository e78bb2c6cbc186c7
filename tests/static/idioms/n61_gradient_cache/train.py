import torch
from grad_cache import GradCache
from torch import nn


def contrastive(q, p):
    return nn.functional.cross_entropy(q @ p.t(), torch.arange(len(q), device=q.device))


def train(loader):
    query, passage = nn.Linear(64, 32).cuda(), nn.Linear(64, 32).cuda()
    optimizer = torch.optim.AdamW([*query.parameters(), *passage.parameters()], lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    gc = GradCache([query, passage], 8, contrastive, fp16=True, scaler=scaler)
    for q, p in loader:
        optimizer.zero_grad()
        loss = gc(q.cuda(), p.cuda())
        scaler.step(optimizer)
        scaler.update()
        print(loss.item())
