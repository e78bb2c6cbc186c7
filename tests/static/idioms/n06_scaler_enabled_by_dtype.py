import torch
from torch import nn

dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
ptdtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]

model = nn.Linear(32, 32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
# a no-op unless the dtype is float16
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))

for _ in range(100):
    x = torch.randn(8, 32, device="cuda")
    with torch.amp.autocast(device_type="cuda", dtype=ptdtype):
        loss = nn.functional.mse_loss(model(x), x)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
