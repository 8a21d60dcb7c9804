"""How each command of the pages is handled: the test that runs or checks it, or the reason why none does."""

HERE = "tests/docs/test_every_command.py"
HANDLED = {
    # Commands that a test runs as they are written.
    r"docs/(samples|objectives)\.md: slipstream lab": (
        "tests/lab/test_compare.py::test_a_command_of_a_page_runs"
    ),
    r"docs/terminal\.md: slipstream (status|ledger|plot)": (
        "tests/docs/test_terminal_page.py::test_every_command_that_reads_a_run_runs"
    ),
    r"docker/README\.md: python3 docker/digests": (
        "tests/images/test_bake.py::test_the_command_of_the_page_writes_the_digests"
    ),
    r"deploy/prometheus/README\.md: sed": (
        "tests/chart/test_monitoring.py::test_the_documented_command_adds_links_to_rules_without_the_chart"
    ),
    r"CONTRIBUTING\.md: (make (docs|charts|dashboards charts)$|\.venv/bin/)": (
        "tests/recipes/test_recipes.py::test_a_recipe_works"
    ),
    r"docs/verifier\.md: slipstream score": (
        "tests/docs/test_verifier_pages.py::test_the_other_commands_of_the_page_run"
    ),
    r"docs/getting-started\.md: eval": (
        "tests/cli/test_completion.py::test_tab_completes_commands_options_and_files"
    ),
    r"docs/(configuration|getting-started)\.md: slipstream schema": f"{HERE}::test_a_command_runs_as_written",
    r"docs/algorithms\.md: slipstream algorithms": f"{HERE}::test_a_command_runs_as_written",
    r"docs/security\.md: slipstream certs": f"{HERE}::test_a_command_runs_as_written",
    r"docs/samples\.md: slipstream samples": f"{HERE}::test_a_command_on_stored_completions_runs",
    r"docs/tutorial\.md: (slipstream validate|python rows\.py)": (
        "tests/docs/test_tutorial.py::test_the_files_of_the_page_are_valid_after_its_commands"
    ),
    # Commands with other files, other settings or fewer steps, or as a part of a longer test.
    r"docs/environments\.md: python -m slipstream\.actor": (
        "tests/actor/adapters/test_verifiers.py::test_tasks_become_rows"
    ),
    r"(README|docs/(getting-started|algorithms))\.md: slipstream validate my\.yaml": (
        "tests/docs/test_getting_started_page.py::test_the_example_is_valid_without_a_warning_about_its_rewards"
    ),
    r"docs/agents\.md: slipstream validate run\.yaml --try": (
        "tests/cli/test_trials.py::test_validate_runs_no_program_unless_it_is_asked_to"
    ),
    r"docs/tutorial\.md: slipstream (run|warmup|samples|export)": (
        "tests/docs/test_tutorial.py::test_the_tutorial_can_be_followed_from_top_to_bottom"
    ),
    r"docs/console\.md: slipstream console( runs|$)": (
        "tests/console/test_program.py::test_the_command_serves_a_run_until_it_is_interrupted"
    ),
    r"docs/examples\.md: slipstream run": (
        "tests/system/test_examples.py::test_an_example_trains_on_its_environment"
    ),
    r"docs/getting-started\.md: slipstream run examples/r1_recipe": (
        "tests/system/test_stages.py::test_the_r1_recipe_completes_its_four_stages"
    ),
    r"docs/getting-started\.md: slipstream run examples/self_play": (
        "tests/system/test_stages.py::test_preference_rounds_and_a_distillation_are_completed"
    ),
    r"docs/(objectives|algorithms)\.md: slipstream run examples/addition": (
        "tests/system/test_presets.py::test_the_preset_trains_on_the_quickstart_s_model"
    ),
    r"docs/.*\.md: slipstream control": (
        "tests/system/test_control.py::test_a_run_is_paused_saved_and_resumed_and_no_group_is_lost"
    ),
    # Commands that no test runs; a test checks what they name, or does what they do by other means.
    # A shell runs all blocks of these pages with stubs; arguments are compared with chart and images.
    r"docs/(kubernetes|cluster|networks)\.md: ": (
        "tests/docs/test_page_commands.py::test_the_command_line_accepts_every_call_of_slipstream"
    ),
    # The same with a stub of docker, and with a stub of slipstream.
    r"docker/README\.md: (docker buildx bake|REGISTRY=)": (
        "tests/images/test_bake.py::test_the_images_that_the_page_pushes_have_a_bill_of_materials_and_a_provenance"
    ),
    r"deploy/compose/README\.md: bash deploy/compose/prepare\.sh": (
        "tests/images/test_compose.py::test_every_mounted_file_is_in_the_repository_or_made_by_the_preparation"
    ),
    # The test renders a release that differs in its namespace only.
    r"README\.md: helm install": "tests/docs/test_page_commands.py::test_every_release_of_the_page_renders",
    # The test sends the body and the header of the page with another client.
    r"docs/verifier\.md: curl": (
        "tests/docs/test_verifier_pages.py::test_the_request_of_the_page_is_answered_over_http"
    ),
    # The test draws the panel of the page from the rows of this run.
    r"docs/terminal\.md: slipstream run": (
        "tests/docs/test_terminal_page.py::test_the_panel_is_that_of_the_run"
    ),
    # The test opens a timeline while the variable is set, without a run.
    r"docs/samples\.md: OTEL_EXPORTER": (
        "tests/samples/test_timeline_export.py::test_an_opened_timeline_writes_the_file_and_sends_the_same_spans"
    ),
    # The test parses what ssh starts, and compares the forwarded port with that of the console.
    r"docs/console\.md: ssh ": (
        "tests/docs/test_console_page.py::test_the_command_over_ssh_starts_a_console_at_the_forwarded_port"
    ),
    # The test calls the program behind the command, for a run and with a precision.
    r"docs/learner\.md: slipstream export": (
        "tests/learner/test_checkpoint.py::test_export_writes_the_newest_checkpoint_of_a_run_or_names_the_fault"
    ),
    # The test starts the program behind the command with an objective of its own.
    r"docs/console\.md: slipstream console --objective": (
        "tests/browser/test_pages.py::test_the_lab_compares_the_losses_that_a_visitor_names"
    ),
    # The test starts the program behind the command, with these options and another address.
    r"docs/console\.md: slipstream console --host": (
        "tests/console/test_pod.py::test_the_program_of_a_pod_serves_before_its_run_begins_and_ends_with_sigterm"
    ),
    # The test runs the example with fewer steps, without the evaluation that follows.
    r"docs/getting-started\.md: make example-smollm2": (
        "tests/system/test_smollm2_example.py::test_the_example_trains_what_the_model_sampled_and_resumes_after_ctrl_c"
    ),
    # Commands that nothing checks.
    r"CONTRIBUTING\.md: make (setup|lint|test)$": "it is what CI runs: .ci/run and .github/workflows/ci.yaml",
    r"CONTRIBUTING\.md: make test-some": "it is pytest with a selection of what `make test` runs",
    r"README\.md: make (quickstart|test)$": (
        "`make test` runs this test; the figure `quickstart` is the output of the other one"
    ),
    r"(README|docs/getting-started)\.md: slipstream run my\.yaml": (
        "the model and the data are the reader's; docs/tutorial.md has such a run with all its files"
    ),
    r"docs/alerts\.md: (export|alias)": "it names a cluster of the reader",
    r"docs/tutorial\.md: export PATH": "the test of the tutorial runs in an environment with its own PATH",
    r"docker/README\.md: docker |deploy/compose/README\.md: docker ": (
        "it needs Docker, which builds and starts images; tests/images read the files that it reads"
    ),
}
"""Pattern of `PAGE: COMMAND` → test, or the reason why there is none. The first match counts."""
