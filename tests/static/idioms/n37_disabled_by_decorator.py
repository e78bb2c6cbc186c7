import torch
from torch import nn
from torch.amp import autocast


class GaussianDiffusion(nn.Module):
    def __init__(self, model, timesteps=1000):
        super().__init__()
        self.model = model
        betas = torch.linspace(1e-4, 0.02, timesteps, dtype=torch.float64)
        alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        self.register_buffer("sqrt_alphas_cumprod", torch.sqrt(alphas_cumprod).to(torch.float32))
        self.register_buffer("sqrt_one_minus", torch.sqrt(1.0 - alphas_cumprod).to(torch.float32))

    @autocast("cuda", enabled=False)
    def q_sample(self, x_start, t, noise):
        shape = (-1, *((1,) * (x_start.ndim - 1)))
        return self.sqrt_alphas_cumprod[t].view(shape) * x_start + self.sqrt_one_minus[t].view(shape) * noise

    def forward(self, img):
        t = torch.randint(0, 1000, (img.shape[0],), device=img.device)
        noise = torch.randn_like(img)
        return nn.functional.mse_loss(self.model(self.q_sample(img, t, noise)), noise)


class Trainer:
    def __init__(self, diffusion, loader, amp=True):
        self.diffusion, self.loader, self.amp = diffusion.cuda(), loader, amp
        self.opt = torch.optim.Adam(diffusion.parameters(), lr=1e-4, betas=(0.9, 0.99))
        self.scaler = torch.amp.GradScaler("cuda", enabled=amp)

    def train(self):
        for img in self.loader:
            with autocast("cuda", enabled=self.amp):
                loss = self.diffusion(img.cuda())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.opt.zero_grad()
