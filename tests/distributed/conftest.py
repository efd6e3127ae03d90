import pytest
from support.embedded_prompts import poisoned_embeds as poisoned_embeds
from support.rank_matrix import RankMatrix


@pytest.fixture(scope="session")
def rank_matrix(tmp_path_factory):
    """The models of all families, each made when it is first used."""
    return RankMatrix(tmp_path_factory.mktemp("ranks"))
