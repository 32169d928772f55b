"""``infercast traffic``: a trace as a table, a chart and JSON."""


def test_table_and_json(infercast, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival,input,output\n0,10,5\n1,20,5\n3,30,6\n")
    shown = infercast("traffic", path).out
    assert "--rate 1" in shown
    assert "Requests per second" in shown
    found = infercast("traffic", path, "--json").json
    assert found["requests"] == 3
    assert found["input_tokens"]["mean"] == 20
    assert found["options"]["input_len"].startswith("quantiles:10:")


def test_wrong_row_is_one_sentence(infercast, tmp_path):
    path = tmp_path / "spans.json"
    path.write_text('{"resourceSpans": [{"scopeSpans": [7]}]}')
    assert "is not shaped like a row of OpenTelemetry spans" in infercast("traffic", path).sentence
