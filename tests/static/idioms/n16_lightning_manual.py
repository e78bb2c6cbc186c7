import pytorch_lightning as pl
import torch
from torch import nn


class GAN(pl.LightningModule):
    def __init__(self, latent_dim=64):
        super().__init__()
        self.automatic_optimization = False
        self.latent_dim = latent_dim
        self.generator = nn.Sequential(nn.Linear(latent_dim, 128), nn.ReLU(), nn.Linear(128, 784), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def adversarial_loss(self, logits, real):
        target = torch.ones_like(logits) if real else torch.zeros_like(logits)
        return nn.functional.binary_cross_entropy_with_logits(logits, target)

    def training_step(self, batch, batch_idx):
        images = batch[0].flatten(1)
        opt_g, opt_d = self.optimizers()
        z = torch.randn(images.shape[0], self.latent_dim, device=self.device)

        self.toggle_optimizer(opt_g)
        g_loss = self.adversarial_loss(self.discriminator(self.generator(z)), True)
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.untoggle_optimizer(opt_g)

        self.toggle_optimizer(opt_d)
        real_loss = self.adversarial_loss(self.discriminator(images), True)
        fake_loss = self.adversarial_loss(self.discriminator(self.generator(z).detach()), False)
        d_loss = (real_loss + fake_loss) / 2
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        self.log_dict({"g_loss": g_loss, "d_loss": d_loss}, prog_bar=True)

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        )


def main(loader):
    pl.Trainer(precision="16-mixed", max_epochs=5, accelerator="gpu", devices=1).fit(GAN(), loader)
