"""Random drafts, laws and coins for the bodies of kernels/verify.py: chains and trees, points and laws, bad rows."""

import torch

from decodex.kernels.verify import FlatDrafts


def random_law(num_rows, vocab_size, generator):
    """Softmax rows from flat to peaked, half of them with zeros."""
    logits = torch.randn(num_rows, vocab_size, generator=generator) * torch.rand(num_rows, 1, generator=generator) * 12
    is_out = torch.rand(num_rows, vocab_size, generator=generator) < 0.5
    is_out &= torch.rand(num_rows, 1, generator=generator) < 0.5
    is_out[:, vocab_size // 2] = False
    return torch.softmax(logits.masked_fill(is_out, -torch.inf), 1)


def make_case(vocab_size, num_seqs, is_block, generator):
    """Laws [R, V] (a third of them the draft's, a row of zeros, a row of NaN), drafts of 0 to 5 nodes, coins [N]."""
    starts, cu_nodes, parents, token_ids, draft_laws, rows = [], [0], [], [], [], []
    for b in range(num_seqs):
        size = int(torch.randint(0, 6, (), generator=generator))
        own = [
            i - 1 if is_block else int(torch.randint(-1, i, (), generator=generator)) if i else -1 for i in range(size)
        ]
        q = random_law(size, vocab_size, generator)
        for i in range(size):
            q[i] = q[own.index(own[i])]
        tokens = torch.multinomial(q, 1, generator=generator)[:, 0] if size else torch.empty(0, dtype=torch.int64)
        p = random_law(size + 1, vocab_size, generator)
        if b % 3 == 0:
            p[: len(q)] = q
        starts.append(sum(len(law) for law in rows))
        rows.append(p)
        parents += own
        token_ids += tokens.tolist()
        cu_nodes.append(len(parents))
        draft_laws.append(None if b % 4 == 1 else q)
    laws = torch.cat(rows)
    laws[len(laws) // 2] = 0.0
    laws[len(laws) // 3] = torch.nan
    coins = torch.rand(len(parents), generator=generator)
    coins = torch.where(torch.rand(coins.shape, generator=generator) < 0.2, 1 - 2.0**-24, coins)
    return laws, FlatDrafts(starts, cu_nodes, parents, token_ids, draft_laws), coins
