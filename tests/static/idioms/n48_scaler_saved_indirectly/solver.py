import torch


class StateManager:
    def __init__(self):
        self.sources = {}

    def register(self, name, source):
        self.sources[name] = source

    def state_dict(self):
        return {name: source.state_dict() for name, source in self.sources.items()}

    def load_state_dict(self, state):
        for name, source in self.sources.items():
            source.load_state_dict(state[name])


class BaseSolver:
    def __init__(self):
        self.stateful = StateManager()

    def register_stateful(self, *names):
        for name in names:
            owner = self
            for part in name.split("."):
                owner = getattr(owner, part)
            self.stateful.register(name, owner)

    def commit(self, path):
        torch.save(self.stateful.state_dict(), path)

    def restore(self, path):
        self.stateful.load_state_dict(torch.load(path))
