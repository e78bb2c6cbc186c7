import logging

import torch
from torch import nn


def update_parameter_and_lr(model, optimizer, scheduler, scaler, info):
    use_amp, clip_grad = info["use_amp"], info["clip_grad"]
    grad_norm = 0.0
    if (info["batch_idx"] + 1) % info["accum_grad"] == 0:
        if use_amp:
            scaler.unscale_(optimizer)
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
            if not torch.isfinite(grad_norm):
                logging.info("a gradient is not finite; the scaler skips this step")
            scaler.step(optimizer)
            scaler.update()
        else:
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
            if torch.isfinite(grad_norm):
                optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    info["grad_norm"] = grad_norm
    return info


def train(model, optimizer, scheduler, loader, scaler, info):
    for batch_idx, (x, y) in enumerate(loader):
        info["batch_idx"] = batch_idx
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda()) / info["accum_grad"]
        if info["use_amp"]:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        update_parameter_and_lr(model, optimizer, scheduler, scaler, info)
