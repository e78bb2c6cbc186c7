"""More programs for ``test_unchanged``, one for each thing of torch that a tracer could disturb."""

from __future__ import annotations

MORE = {
    "recurrent, packed sequences": """
        from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
        model, head = nn.LSTM(8, 6, 2, dropout=0.2), nn.Linear(6, 3)
        optimizer = torch.optim.Adagrad([*model.parameters(), *head.parameters()])
        for step in range(3):
            packed = pack_padded_sequence(torch.randn(5, 4, 8), [5, 4, 4, 2])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out, lengths = pad_packed_sequence(model(packed)[0])
                loss = head(out).float().square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item(), lengths.tolist())
        digest(model, head)
    """,
    "autograd function with custom_fwd": """
        class Scaled(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x @ w
            @staticmethod
            @torch.amp.custom_bwd(device_type="cpu")
            def backward(ctx, grad):
                x, w = ctx.saved_tensors
                print(grad.dtype, torch.is_autocast_enabled("cpu"), ctx.needs_input_grad)
                return grad @ w.T, x.T @ grad
        model = nn.Linear(8, 8)
        w = nn.Parameter(torch.randn(8, 3))
        optimizer = torch.optim.NAdam([*model.parameters(), w])
        for step in range(3):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = Scaled.apply(model(torch.randn(4, 8)), w).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item())
        digest(model)
    """,
    "functional transforms": """
        from torch.func import functional_call, grad, vmap
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def loss_of(parameters, x, y):
            return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])
        for step in range(3):
            x, y = batch()
            parameters = {name: p.detach() for name, p in model.named_parameters()}
            each = vmap(grad(loss_of), (None, 0, 0))(parameters, x, y)
            for name, p in model.named_parameters():
                p.grad = each[name].mean(0)
            optimizer.step()
            print(step, {name: value.norm().item() for name, value in each.items()})
        digest(model)
    """,
    "fused optimizer, scaler, accumulation": """
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        for step in range(4):
            for micro in range(2):
                x, y = batch()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(model(x), y) / 2
                scaler.scale(loss).backward()
            scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
            print(step, loss.item(), scaler.get_scale(), scaler.state_dict())
        digest(model)
    """,
    "averaged weights": """
        from torch.optim.swa_utils import AveragedModel, SWALR, get_ema_multi_avg_fn
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.5)
        schedule = SWALR(optimizer, 0.01)
        for step in range(3):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step(); average.update_parameters(model)
            print(step, loss.item(), schedule.get_last_lr())
        digest(model, average)
    """,
    "gradient penalty": """
        model = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1))
        optimizer = torch.optim.Adamax(model.parameters())
        for step in range(3):
            x = torch.randn(5, 8, requires_grad=True)
            out = model(x).sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            loss = out.square() + (slope.norm(dim=1) - 1).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item(), slope.norm().item())
        digest(model)
    """,
    "threads": """
        from concurrent.futures import ThreadPoolExecutor
        model = nn.Linear(8, 3)
        helper = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ThreadPoolExecutor(1) as pool:
            for step in range(3):
                x, y = batch()
                target = pool.submit(lambda x=x: helper(x).detach()).result()
                loss = F.mse_loss(model(x), target)
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                print(step, loss.item())
        digest(model, helper)
    """,
    "validation in inference mode": """
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
        for step in range(3):
            x, y = batch()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            model.eval()
            with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
                print(step, loss.item(), out.argmax(1).tolist(), out.is_inference(), out.dtype)
            model.train()
        digest(model)
    """,
    "writes in place": """
        w = nn.Parameter(torch.randn(4, 8))
        optimizer = torch.optim.SGD([w], lr=0.1)
        for step in range(3):
            x = w * 2
            x[0] = x[1].exp(); x[:, 1].mul_(3.0); x = x.clone(); x.add_(w).clamp_(-2, 2)
            a, b = x.chunk(2)
            loss = (torch.cat([a.sin(), b]) + x).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item(), x._version, w._version)
        print(w.sum().item(), torch.rand(1).item())
    """,
    "an optimizer in the backward": """
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizers = {p: torch.optim.SGD([p], lr=0.1, foreach=False) for p in model.parameters()}
        def step_now(p):
            optimizers[p].step(); optimizers[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step_now)
        for step in range(4):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            print(step, loss.item(), [p.grad is None for p in model.parameters()])
        digest(model)
    """,
    "sparse gradients": """
        table, head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 3)
        one, two = torch.optim.SparseAdam(table.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)
        for step in range(3):
            ids, y = torch.randint(0, 50, (6,)), torch.randint(0, 3, (6,))
            loss = F.cross_entropy(head(table(ids)), y)
            one.zero_grad(); two.zero_grad(); loss.backward()
            print(step, loss.item(), table.weight.grad._nnz(), table.weight.grad.is_coalesced())
            one.step(); two.step()
        digest(table, head)
    """,
    "memory formats": """
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2))
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        for step in range(3):
            x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
            loss = out.float().square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item(), out.stride(), model[0].weight.grad.stride())
        digest(model)
    """,
    "random states": """
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.RReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(3)
        for step in range(3):
            x = torch.randn(5, 8, generator=generator)
            with torch.random.fork_rng():
                torch.bernoulli(torch.rand(3))
            loss = (model(x) + torch.randn_like(x[:, :3])).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            state = torch.get_rng_state().numpy().tobytes(), generator.get_state().numpy().tobytes()
            print(step, loss.item(), [hashlib.sha256(one).hexdigest() for one in state])
        digest(model)
    """,
    "saved tensors on the side": """
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        packed = []
        def pack(tensor):
            packed.append((tuple(tensor.shape), tensor.dtype))
            return tensor
        for step in range(3):
            x, y = batch()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item(), packed); packed.clear()
        digest(model)
    """,
    "parametrizations": """
        from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
        model = nn.Sequential(spectral_norm(nn.Linear(8, 8)), weight_norm(nn.Linear(8, 8)), orthogonal(nn.Linear(8, 8)))
        optimizer = torch.optim.ASGD(model.parameters())
        for step in range(3):
            loss = (model(torch.randn(5, 8)) - 1).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, loss.item(), model[0].weight.norm().item())
        digest(model)
    """,
    "a tensor subclass": """
        class Named(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                calls[func.__name__] = calls.get(func.__name__, 0) + 1
                return super().__torch_function__(func, types, args, kwargs or {})
        calls = {}
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            x = torch.randn(5, 8).as_subclass(Named)
            loss = model(x).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(step, float(loss), type(loss).__name__, sorted(calls.items())); calls.clear()
        digest(model)
    """,
}
