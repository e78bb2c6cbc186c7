import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--grad-clip", type=float, default=1.0)
    parser.add_argument("--fp16", action="store_true")
    args = parser.parse_args()
    model = nn.Linear(16, 16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)
    for step in range(100):
        x = torch.randn(4, 16, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.fp16):
            loss = (model(x) - x).pow(2).mean()
        scaler.scale(loss).backward()
        if args.grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
