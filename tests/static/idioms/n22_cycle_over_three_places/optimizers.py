from torch.optim import Adam


class Optimizers:
    def __init__(self, param_groups, lr=1e-2, max_norm=None):
        self.optimizers = {name: Adam(params, lr=lr, eps=1e-15) for name, params in param_groups.items()}
        self.parameters = param_groups
        self.max_norm = max_norm

    def zero_grad_all(self):
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def optimizer_scaler_step_all(self, grad_scaler):
        for name, optimizer in self.optimizers.items():
            if self.max_norm is not None:
                grad_scaler.unscale_(optimizer)
            if any(p.grad is not None for p in self.parameters[name]):
                grad_scaler.step(optimizer)
