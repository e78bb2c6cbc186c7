import torch
from torch import nn


def clip_grad_value_(parameters, clip_value, norm_type=2):
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    parameters = list(filter(lambda p: p.grad is not None, parameters))
    norm_type = float(norm_type)
    if clip_value is not None:
        clip_value = float(clip_value)
    total_norm = 0
    for p in parameters:
        param_norm = p.grad.data.norm(norm_type)
        total_norm += param_norm.item() ** norm_type
        if clip_value is not None:
            p.grad.data.clamp_(min=-clip_value, max=clip_value)
    return total_norm ** (1.0 / norm_type)


def train(hps, loader):
    net = nn.GRU(80, 128, batch_first=True).cuda()
    optim = torch.optim.AdamW(net.parameters(), hps.learning_rate)
    scaler = torch.amp.GradScaler("cuda", enabled=hps.fp16_run)
    for mel in loader:
        with torch.autocast("cuda", enabled=hps.fp16_run, dtype=torch.float16):
            loss = net(mel.cuda())[0].float().abs().mean()
        optim.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optim)
        if hps.clip:
            nn.utils.clip_grad_norm_(parameters=net.parameters(), max_norm=200)
        grad_norm = clip_grad_value_(net.parameters(), None)
        scaler.step(optim)
        scaler.update()
        print(loss.item(), grad_norm)
