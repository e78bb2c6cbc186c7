import torch
from torch import nn


def fit(model, train_objectives, optimizers, schedulers, steps, use_amp=True, max_grad_norm=1.0):
    if use_amp:
        scaler = torch.amp.GradScaler("cuda")
    for _ in range(steps):
        for (loader, loss_model), optimizer, scheduler in zip(train_objectives, optimizers, schedulers):
            features, labels = next(loader)
            skip_scheduler = False
            if use_amp:
                with torch.autocast(device_type="cuda"):
                    loss_value = loss_model(features, labels)
                scale_before_step = scaler.get_scale()
                scaler.scale(loss_value).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(loss_model.parameters(), max_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                skip_scheduler = scaler.get_scale() != scale_before_step
            else:
                loss_value = loss_model(features, labels)
                loss_value.backward()
                nn.utils.clip_grad_norm_(loss_model.parameters(), max_grad_norm)
                optimizer.step()
            optimizer.zero_grad()
            if not skip_scheduler:
                scheduler.step()
    return model
