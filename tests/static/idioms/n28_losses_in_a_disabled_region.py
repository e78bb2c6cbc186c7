import torch
from torch import nn


class KoLeoLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.pdist = nn.PairwiseDistance(2, eps=1e-8)

    def forward(self, student_output, eps=1e-8):
        with torch.autocast("cuda", enabled=False):
            student_output = nn.functional.normalize(student_output.float(), eps=eps, p=2, dim=-1)
            dots = torch.mm(student_output, student_output.t())
            dots.view(-1)[:: student_output.shape[0] + 1].fill_(-1)
            indices = torch.max(dots, dim=1).indices
            distances = self.pdist(student_output, student_output[indices])
            return -torch.log(distances + eps).mean()


def train(loader):
    model = nn.Linear(128, 64).cuda()
    koleo = KoLeoLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            features = model(x.cuda())
            loss_reg = 0.1 * koleo(features)
        with torch.autocast("cuda", enabled=False):
            loss = nn.functional.l1_loss(features.float(), y.cuda()) + loss_reg
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
