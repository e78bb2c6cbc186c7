import torch
from torch import nn


class GanTrainer:
    def __init__(self, g_network, d_network, g_optimizer, d_optimizer, amp=True, d_train_steps=1):
        self.g_network, self.d_network = g_network, d_network
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer
        self.amp, self.d_train_steps = amp, d_train_steps
        self.g_scaler = torch.amp.GradScaler("cuda") if amp else None
        self.d_scaler = torch.amp.GradScaler("cuda") if amp else None
        self.criterion = nn.BCEWithLogitsLoss()

    def d_loss(self, real, fake):
        out_real, out_fake = self.d_network(real), self.d_network(fake)
        loss = self.criterion(out_real, torch.ones_like(out_real))
        return loss + self.criterion(out_fake, torch.zeros_like(out_fake))

    def _iteration(self, real, latent):
        fake = self.g_network(latent)
        for _ in range(self.d_train_steps):
            self.d_optimizer.zero_grad(set_to_none=True)
            if self.amp and self.d_scaler is not None:
                with torch.autocast("cuda"):
                    loss_d = self.d_loss(real, fake.detach())
                self.d_scaler.scale(loss_d).backward()
                self.d_scaler.step(self.d_optimizer)
                self.d_scaler.update()
            else:
                self.d_loss(real, fake.detach()).backward()
                self.d_optimizer.step()
        self.g_optimizer.zero_grad(set_to_none=True)
        if self.amp and self.g_scaler is not None:
            with torch.autocast("cuda"):
                out = self.d_network(self.g_network(latent))
                loss_g = self.criterion(out, torch.ones_like(out))
            self.g_scaler.scale(loss_g).backward()
            self.g_scaler.step(self.g_optimizer)
            self.g_scaler.update()
        else:
            out = self.d_network(self.g_network(latent))
            self.criterion(out, torch.ones_like(out)).backward()
            self.g_optimizer.step()
