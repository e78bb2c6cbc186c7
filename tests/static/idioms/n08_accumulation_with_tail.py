import torch
from torch import nn


def train_epoch(epoch, loader, model, optimizer, scaler, args):
    step = 0
    for step, (input_ids, labels) in enumerate(loader, start=1):
        input_ids, labels = input_ids.to(args.device), labels.to(args.device)
        with torch.amp.autocast("cuda", dtype=torch.float16):
            logits = model(input_ids)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            loss = loss / args.accumulation_steps
        scaler.scale(loss).backward()
        if step % args.accumulation_steps == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        if step % args.log_interval == 0:
            print(epoch, step, loss.item() * args.accumulation_steps)
    # what the last, incomplete round has accumulated
    if step > 0 and step % args.accumulation_steps != 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def main(args, loader):
    model = nn.Sequential(nn.Embedding(512, 64), nn.Linear(64, 512)).to(args.device)
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    for epoch in range(args.epochs):
        train_epoch(epoch, loader, model, optimizer, scaler, args)
