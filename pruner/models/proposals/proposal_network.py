"""The autoregressive network: a score for every option of every token.

The score is added to the log prior of the option, and the softmax over the legal options gives the
probability. The last layers begin at zero, so an untrained network draws as MetaSchedule does, and
what it learns is the logarithm of a likelihood ratio.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.models.proposals.decision_tokens import OPTION_COLUMNS, TOKEN_COLUMNS


class ProposalNetwork(nn.Module):
    """A recurrent network over decision tokens.

    A space (device, operator, counts of instructions, the mean of its tokens) starts the state;
    each decided option moves it; the score of an option depends on the state, the token and the
    option. ``dropout``: of the columns of the space and of the states: the records have few tasks.
    """

    def __init__(self, *, num_space: int, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        self.arguments = {"num_space": num_space, "width": width, "dropout": dropout}
        self.token = nn.Linear(len(TOKEN_COLUMNS), width)
        self.space = nn.Linear(num_space + width, width)
        self.dropout = nn.Dropout(dropout)
        self.start = nn.Linear(width, width)
        self.recurrent = nn.GRU(width + len(OPTION_COLUMNS), width, batch_first=True)
        self.of_state = nn.Linear(width, width)
        self.of_token = nn.Linear(width, width, bias=False)
        self.of_option = nn.Linear(len(OPTION_COLUMNS), width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.space_score = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.space_score.weight)

    def begin(
        self, space: Float[Tensor, " column"], tokens: Float[Tensor, "token column"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read a design space.

        Returns:
            Its score among the spaces of a task, the first state [width], and the embedded tokens
            [token, width].
        """
        embedded = torch.relu(self.token(tokens))
        mean = embedded.mean(dim=0) if len(tokens) else embedded.new_zeros(self.token.out_features)
        known = torch.relu(self.space(torch.cat([self.dropout(space), mean])))
        return self.space_score(known)[0], torch.tanh(self.start(known)), embedded

    def advance(self, embedded: Tensor, decided: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Move the states along decided options.

        States [N, width], options [N, T, column] of tokens [T, width].

        Returns:
            The states after each token [N, T, width], and the last state.
        """
        inputs = torch.cat([embedded.expand(len(decided), -1, -1), decided], dim=2)
        states, last = self.recurrent(inputs, state[None].contiguous())
        return states, last[0]

    def scores(self, states: Tensor, embedded: Tensor, options: Tensor) -> Tensor:
        """Score options [..., V, column] by states and tokens [..., width]."""
        known = (self.of_state(self.dropout(states)) + self.of_token(embedded))[..., None, :]
        return self.score(torch.relu(known + self.of_option(options)))[..., 0]
