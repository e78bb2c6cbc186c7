import numpy as np
import torch
from torch import nn


class DiscriminatorBlock(nn.Module):
    def __init__(self, in_channels, out_channels, use_fp16=False, conv_clamp=None):
        super().__init__()
        self.use_fp16, self.conv_clamp = use_fp16, conv_clamp
        self.weight = nn.Parameter(torch.randn([out_channels, in_channels, 3, 3]))
        self.weight_gain = 1 / np.sqrt(in_channels * 9)

    def forward(self, x, force_fp32=False):
        dtype = torch.float16 if self.use_fp16 and not force_fp32 else torch.float32
        x = x.to(dtype=dtype)
        x = nn.functional.conv2d(x, (self.weight * self.weight_gain).to(x.dtype), padding=1)
        x = nn.functional.leaky_relu(x, 0.2)
        return x.clamp(-self.conv_clamp, self.conv_clamp) if self.conv_clamp is not None else x


class Discriminator(nn.Module):
    def __init__(self, num_fp16_res=2):
        super().__init__()
        blocks = [DiscriminatorBlock(3, 16, num_fp16_res > 0, 256), DiscriminatorBlock(16, 16, num_fp16_res > 1, 256)]
        self.blocks = nn.ModuleList(blocks)
        self.out = nn.Linear(16, 1)

    def forward(self, img):
        x = img
        for block in self.blocks:
            x = block(x)
        return self.out(x.to(torch.float32).mean([2, 3]))


def training_loop(loader):
    D = Discriminator().train().requires_grad_(True).cuda()
    opt = torch.optim.Adam(D.parameters(), lr=0.002, betas=(0, 0.99), eps=1e-8)
    for img in loader:
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.softplus(-D(img.cuda())).mean()
        loss.backward()
        for param in D.parameters():
            if param.grad is not None:
                torch.nan_to_num(param.grad, nan=0, posinf=1e5, neginf=-1e5, out=param.grad)
        opt.step()
