import torch
from torch import nn
from torch.optim import lr_scheduler
from tqdm import tqdm


def train(opt, dataloader, device):
    cuda = device.type != "cpu"
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    model = model.to(device)
    amp = cuda and not opt.no_amp
    optimizer = torch.optim.SGD(model.parameters(), lr=opt.lr, momentum=0.937, nesterov=True)
    scheduler = lr_scheduler.LinearLR(optimizer)
    scaler = torch.cuda.amp.GradScaler(enabled=amp)
    last_opt_step, accumulate = -1, max(round(64 / opt.batch_size), 1)
    nb = len(dataloader)
    for epoch in range(opt.epochs):
        model.train()
        optimizer.zero_grad()
        for i, (imgs, targets) in tqdm(enumerate(dataloader), total=nb):
            ni = i + nb * epoch
            imgs = imgs.to(device, non_blocking=True).float() / 255
            with torch.cuda.amp.autocast(enabled=amp):
                pred = model(imgs)
                loss = nn.functional.cross_entropy(pred, targets.to(device)) / accumulate
            scaler.scale(loss).backward()
            if ni - last_opt_step >= accumulate:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                last_opt_step = ni
        scheduler.step()
