import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

INITIAL_LOG_LOSS_SCALE = 20.0


class MixedPrecisionTrainer:
    def __init__(self, model, fp16_scale_growth=1e-3):
        self.model = model
        self.model_params = list(model.parameters())
        self.lg_loss_scale = INITIAL_LOG_LOSS_SCALE
        self.fp16_scale_growth = fp16_scale_growth
        flat = _flatten_dense_tensors([p.detach().float() for p in self.model_params])
        self.master_params = [nn.Parameter(flat)]
        self.model.half()

    def zero_grad(self):
        for p in self.model_params:
            p.grad = None

    def backward(self, loss):
        (loss * 2**self.lg_loss_scale).backward()

    def optimize(self, opt):
        if any(not torch.isfinite(p.grad).all() for p in self.model_params):
            self.lg_loss_scale -= 1
            self.zero_grad()
            return False
        flat = _flatten_dense_tensors([p.grad.detach().float() for p in self.model_params])
        self.master_params[0].grad = flat.mul_(1.0 / 2**self.lg_loss_scale)
        opt.step()
        self.master_params[0].grad = None
        masters = _unflatten_dense_tensors(self.master_params[0].detach(), self.model_params)
        for param, master in zip(self.model_params, masters):
            param.detach().copy_(master)
        self.lg_loss_scale += self.fp16_scale_growth
        return True


def run_loop(loader):
    trainer = MixedPrecisionTrainer(nn.Linear(16, 16).cuda())
    opt = torch.optim.AdamW(trainer.master_params, lr=1e-4)
    for x in loader:
        trainer.zero_grad()
        loss = trainer.model(x.cuda().half()).float().pow(2).mean()
        trainer.backward(loss)
        trainer.optimize(opt)
