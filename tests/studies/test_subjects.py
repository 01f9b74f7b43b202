import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from tangentlens.studies.subjects import head_loss

SIZES = {
    **{"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    **{"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "embedding_size": 16, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "num_key_value_heads": 2, "head_dim": 8, "global_attn_every_n_layers": 1},
}


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "distilbert", "albert", "electra", "eurobert", "modernbert", "mpnet"]
)
def test_the_loss_of_a_head_that_sees_only_labelled_positions_is_that_of_the_whole_model(kind):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **SIZES)).eval()
    tokens = torch.randint(3, 50, (4, 12))
    labels = tokens.where(torch.rand(4, 12) < 0.3, -100)
    batch = {"input_ids": tokens, "labels": labels}
    whole = model(**batch).loss
    shapes = []
    with model.get_output_embeddings().register_forward_hook(lambda _, args, __: shapes.append(args[0].shape[:-1])):
        some = head_loss(model, "encoder", batch)
    torch.testing.assert_close(some, whole)
    assert shapes[0].numel() == (labels != -100).sum()
    weight = model.get_output_embeddings().weight
    (expected,), (found,) = (torch.autograd.grad(loss, weight) for loss in (whole, some))
    torch.testing.assert_close(found, expected)
