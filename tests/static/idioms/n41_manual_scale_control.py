import logging

import torch
from torch import nn


def train_one_epoch(params, model, optimizer, train_dl, scaler):
    for batch_idx, batch in enumerate(train_dl):
        with torch.amp.autocast("cuda", enabled=params.use_fp16):
            loss = nn.functional.mse_loss(model(batch["inputs"]), batch["targets"])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

        if batch_idx % 100 == 0 and params.use_fp16:
            # grows slower than the default would
            cur_grad_scale = scaler._scale.item()
            if cur_grad_scale < 8.0 or (cur_grad_scale < 32.0 and batch_idx % 400 == 0):
                scaler.update(cur_grad_scale * 2.0)
            if cur_grad_scale < 0.01:
                logging.warning(f"Grad scale is small: {cur_grad_scale}")
            if cur_grad_scale < 1.0e-05:
                raise RuntimeError(f"grad_scale is too small, exiting: {cur_grad_scale}")


def run(params, train_dl):
    model = nn.Linear(80, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=params.base_lr)
    scaler = torch.amp.GradScaler("cuda", enabled=params.use_fp16, init_scale=1.0)
    for _ in range(params.num_epochs):
        train_one_epoch(params, model, optimizer, train_dl, scaler)
