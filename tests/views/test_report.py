"""The report around the picture: regions, bound and the table by rank."""

from views_cases import INLINE, TRANSPOSED, planned

from hyperparallel.views import report


def test_report():
    plan, costs, timeline = planned(INLINE, 4, 4, "vision=12/0,llm=4/8")
    text = report(plan, costs, timeline, unit="ms", width=100)
    assert text.startswith(
        "schedule     1f1b(vision+llm)\nsize         P = 4 ranks, M = 4 micro-batches\n"
        "stages       0-3: vision+llm, sharded\n\nrank 0 |[0F0 "
    )
    assert text.endswith(
        """
step time    108 ms
lower bound  96 ms (step time is 12.5 % above it)

rank   busy   bubble   bubble %   peak live   spill   (times in ms)
   0     96       12       11.1           4       0
   1     48       60       55.6           3       0
   2     48       60       55.6           2       0
   3     48       60       55.6           1       0"""
    )


def test_report_names_regions_and_a_reached_bound():
    text = report(*planned(TRANSPOSED, 4, 4, "vision=12/0,llm=4/8"), width=60)
    assert "stages       0-3: vision, replicated, forward only\n             4-7: llm, sharded\n" in text
    assert "lower bound  96 (reached)\n" in text


def test_report_says_how_chunks_lie():
    text = report(*planned("transpose(vision) >> zb(llm, fold=v)", 4, 4, "vision=1/0,llm=4/8"), width=100)
    assert (
        "stages       0-3: vision, replicated, forward only\n             4-7: llm 1 of 2, sharded\n"
        "             8-11: llm 2 of 2, sharded, from rank 3 back to rank 0\n\nrank 0  stage 0  |" in text
    )
