// `longspan compare`: plots the loss curves of several runs, and their differences.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/options.h"
#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"
#include "longspan/text/plot.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

struct Run {
  std::string name;
  std::vector<double> steps, losses;
};

/// Reads the losses of steps from trainer_log.jsonl; evaluations and the last line have none.
Run read_run(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "trainer_log.jsonl";
  std::optional<InputFile> file = InputFile::open_if_there(path.string(), "training log");
  if (!file) {
    throw UserError(
        fmt::format("compare: cannot read {}. --runs wants output folders of `longspan train`.",
                    path.string()));
  }
  LineReader lines(std::move(*file));
  Run run{std::filesystem::path(folder).lexically_normal().filename().string(), {}, {}};
  for (std::string line; lines.next(line);) {
    const nlohmann::json json = parse_json(line, path.string(), lines.number());
    const JsonObject entry(json, fmt::format("{}, line {}", path.string(), lines.number()));
    // null stands for a loss that is not finite.
    if (!entry.has("loss")) continue;
    run.steps.push_back(static_cast<double>(entry.whole("current_steps", 0, kMostCounted)));
    run.losses.push_back(entry.get<double>("loss"));
  }
  if (run.losses.empty()) {
    throw UserError(fmt::format(
        "compare: {} holds no losses; did the run end before its first log?", path.string()));
  }
  return run;
}

/// Returns |loss - loss of the first run| at each step that both have.
Curve difference(const Run& first, const Run& run) {
  Curve curve{.label = run.name, .x = {}, .y = {}};
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const auto at = std::find(first.steps.begin(), first.steps.end(), run.steps[i]);
    if (at == first.steps.end()) continue;
    curve.x.push_back(run.steps[i]);
    curve.y.push_back(std::abs(run.losses[i] - first.losses[at - first.steps.begin()]));
  }
  if (curve.x.empty()) {
    throw UserError(
        fmt::format("compare: {} and {} logged no step in common", first.name, run.name));
  }
  return curve;
}

int run_compare(const Arguments& arguments) {
  const Options options("compare", arguments, {"output"}, {"runs"});
  std::vector<Run> runs;
  for (const std::string& folder : options.required_list("runs")) runs.push_back(read_run(folder));
  if (runs.size() < 2) throw UserError("compare: --runs wants two folders or more");

  PlotPanel losses{.title = "Training loss", .x_label = "step", .y_label = "loss", .curves = {}};
  PlotPanel differences{.title = "Difference from " + runs[0].name,
                        .x_label = "step",
                        .y_label = "|difference of loss|",
                        .curves = {}};
  double largest = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    losses.curves.push_back(
        {.label = runs[i].name, .x = runs[i].steps, .y = runs[i].losses, .dashed = i > 0});
    if (i == 0) continue;
    differences.curves.push_back(difference(runs[0], runs[i]));
    const Curve& curve = differences.curves.back();
    const auto worst = std::max_element(curve.y.begin(), curve.y.end());
    largest = std::max(largest, *worst);
    print_out("{} against {}: largest difference of the loss {:.2e}, at step {:g} of {}\n",
              runs[i].name, runs[0].name, *worst, curve.x[worst - curve.y.begin()], curve.x.size());
  }
  print_out("Largest difference between the curves: {:.2e} (the loss goes from {:.3f} to {:.3f})\n",
            largest, runs[0].losses.front(), runs[0].losses.back());
  if (const auto output = options.text("output")) {
    write_plot(*output, {losses, differences}, 1400, 560);
    print_out("Picture: {}\n", *output);
  }
  return 0;
}

constexpr const char* kCompareHelp =
    R"(Draws the loss curves of several runs in one picture and says how far they are apart from the first.

  longspan compare --runs output/sp1 output/sp2 --output curves.png

  --runs FOLDER ...   output folders of `longspan train`, the one to compare with first
  --output FILE       the picture (PNG); without it only the differences are printed
)";

}  // namespace

Command compare_command() {
  return {"compare", "draw the loss curves of several runs and say how far they are apart",
          kCompareHelp, run_compare, /*computes=*/false};
}

}  // namespace longspan
