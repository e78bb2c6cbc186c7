from contextlib import nullcontext

import torch


class GradCache:
    def __init__(self, models, chunk_size, loss_fn, fp16=False, scaler=None):
        self.models, self.chunk_size, self.loss_fn = models, chunk_size, loss_fn
        if fp16:
            assert scaler is not None, "mixed precision training requires a gradient scaler passed in"
        self.fp16, self.scaler = fp16, scaler

    def model_call(self, model, model_input):
        with torch.autocast("cuda") if self.fp16 else nullcontext():
            return model(model_input)

    def forward_no_grad(self, model, chunks):
        with torch.no_grad():
            return torch.cat([self.model_call(model, chunk) for chunk in chunks])

    def build_cache(self, *reps):
        reps = [r.detach().requires_grad_() for r in reps]
        with torch.autocast("cuda") if self.fp16 else nullcontext():
            loss = self.loss_fn(*reps)
        if self.fp16:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        return [r.grad for r in reps], loss.detach()

    def forward_backward(self, model, chunks, cached_grads):
        for chunk, grad in zip(chunks, cached_grads.split(self.chunk_size)):
            reps = self.model_call(model, chunk)
            surrogate = torch.dot(reps.flatten().float(), grad.flatten().float())
            surrogate.backward()

    def __call__(self, *model_inputs):
        chunked = [x.split(self.chunk_size) for x in model_inputs]
        reps = [self.forward_no_grad(model, chunks) for model, chunks in zip(self.models, chunked)]
        cache, loss = self.build_cache(*reps)
        for model, chunks, grads in zip(self.models, chunked, cache):
            self.forward_backward(model, chunks, grads)
        return loss
