import torch
from torch import nn


def clip_grad_value_(parameters, clip_value, norm_type=2):
    parameters = [p for p in parameters if p.grad is not None]
    total_norm = 0.0
    for p in parameters:
        total_norm += p.grad.data.norm(norm_type).item() ** norm_type
        if clip_value is not None:
            p.grad.data.clamp_(min=-clip_value, max=clip_value)
    return total_norm ** (1.0 / norm_type)


def run(hps, loader):
    net_g, net_d = nn.Linear(32, 64).cuda(), nn.Linear(64, 1).cuda()
    optim_g = torch.optim.AdamW(net_g.parameters(), hps.learning_rate, eps=1e-9)
    optim_d = torch.optim.AdamW(net_d.parameters(), hps.learning_rate, eps=1e-9)
    scaler = torch.cuda.amp.GradScaler(enabled=hps.fp16_run)
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        with torch.cuda.amp.autocast(enabled=hps.fp16_run):
            y_hat = net_g(x)
            real, fake = net_d(y), net_d(y_hat.detach())
            with torch.cuda.amp.autocast(enabled=False):
                loss_disc = (1 - real.float()).pow(2).mean() + fake.float().pow(2).mean()
        optim_d.zero_grad()
        scaler.scale(loss_disc).backward()
        scaler.unscale_(optim_d)
        grad_norm_d = clip_grad_value_(net_d.parameters(), None)
        scaler.step(optim_d)

        with torch.cuda.amp.autocast(enabled=hps.fp16_run):
            fake = net_d(y_hat)
            with torch.cuda.amp.autocast(enabled=False):
                loss_gen = (1 - fake.float()).pow(2).mean() + nn.functional.l1_loss(y_hat.float(), y) * hps.c_mel
        optim_g.zero_grad()
        scaler.scale(loss_gen).backward()
        scaler.unscale_(optim_g)
        grad_norm_g = clip_grad_value_(net_g.parameters(), None)
        scaler.step(optim_g)
        scaler.update()
        print(loss_disc.item(), loss_gen.item(), grad_norm_d, grad_norm_g)
