// What becomes of a step whose numbers are not finite.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <set>
#include <sstream>

#include "longspan/config/choices.h"
#include "longspan/config/config.h"
#include "longspan/config/number_text.h"
#include "longspan/config/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/text/counted.h"
#include "longspan/train/step.h"

namespace longspan {
namespace {

/// The limit for on_nonfinite: skip. A model whose weights are broken would go on forever.
constexpr int64_t kMostSkippedInARow = 20;
constexpr size_t kMostNamed = 3, kMostRows = 8;

/// Rows of one micro-batch by their numbers in the training set, and their loss.
struct RowLoss {
  std::vector<int64_t> rows;
  double loss;
};

/// "row 3, 4 of the training set (counted from 0), own loss nan, nan".
std::string text_of(std::vector<RowLoss> micro_batches) {
  const size_t num_all = micro_batches.size();
  micro_batches.resize(std::min(num_all, kMostRows));
  std::vector<std::string> rows, losses;
  for (const RowLoss& row : micro_batches) {
    rows.push_back(fmt::format("{}", fmt::join(row.rows, ", ")));
    losses.push_back(number_text(row.loss));
  }
  return fmt::format("row {}{} of the training set (counted from 0), own loss {}",
                     fmt::join(rows, ", "),
                     num_all > kMostRows ? fmt::format(" and {} more", num_all - kMostRows) : "",
                     fmt::join(losses, ", "));
}

}  // namespace

std::string TrainingStep::source_of_nonfinite(const std::vector<Row>& of_step,
                                              const std::vector<double>& own_losses,
                                              bool in_loss) const {
  // Each data-parallel group knows its own rows: a line each, the loss and the rows' numbers.
  std::string mine;
  for (size_t i = 0; i < of_step.size(); ++i) {
    if (of_step[i].examples.empty()) continue;
    const double loss = own_losses[i];
    if (mesh_.sequence.rank() != 0 || (in_loss && std::isfinite(loss))) continue;
    std::vector<int64_t> numbers;
    for (const ExamplePointer& example : of_step[i].examples) numbers.push_back(example->number);
    mine += fmt::format("{} {}\n", number_text(loss), fmt::join(numbers, " "));
  }
  std::vector<RowLoss> rows;
  std::istringstream row_lines(fmt::format("{}", fmt::join(world_.gather_text(mine), "")));
  for (std::string line; std::getline(row_lines, line);) {
    std::istringstream words(line);
    std::string loss;
    words >> loss;
    rows.push_back(
        {{std::istream_iterator<int64_t>(words), {}}, std::strtod(loss.c_str(), nullptr)});
  }
  // Rows whose loss is not finite come in the data's order, the others by the size of their loss.
  std::ranges::sort(rows, [&](const RowLoss& a, const RowLoss& b) {
    return !in_loss && a.loss != b.loss ? a.loss > b.loss : a.rows < b.rows;
  });
  if (in_loss) return rows.empty() ? "" : fmt::format(" It comes from {}.", text_of(rows));
  mine.clear();
  for (const std::string& name : nonfinite_gradients(update_.trained())) {
    mine += name + "\n";
  }
  std::istringstream lines(fmt::format("{}", fmt::join(world_.gather_text(mine), "")));
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (std::string name; std::getline(lines, name);) {
    if (seen.insert(name).second) names.push_back(name);
  }
  if (names.empty()) return "";
  const size_t num_names = names.size();
  names.resize(std::min(num_names, kMostNamed));
  return fmt::format(
      " It comes from the gradient of {}{}. The step saw {}.", fmt::join(names, ", "),
      num_names > kMostNamed ? " and " + counted(num_names - kMostNamed, "other parameter") : "",
      text_of(rows));
}

void TrainingStep::leave_out(StepResult& result, int64_t step, const std::vector<Row>& rows,
                             const std::vector<double>& own_losses, int64_t num_skipped) {
  const bool in_loss = !std::isfinite(result.loss);
  const std::string where = source_of_nonfinite(rows, own_losses, in_loss);
  const std::string what = fmt::format("The {} of step {} is {}.{} The learning rate is {}.",
                                       in_loss ? "loss" : "gradient norm", step + 1,
                                       number_text(in_loss ? result.loss : result.grad_norm), where,
                                       number_text(result.learning_rate));
  ++skipped_in_a_row_;
  const bool skips = on_nonfinite_of(config_) == OnNonfinite::kSkip;
  if (skips && skipped_in_a_row_ <= kMostSkippedInARow) {
    result.skipped = true;
    if (world_.rank() == 0) {
      console_.say(
          fmt::format("warning: {} The update is left out, as on_nonfinite: skip asks; {} "
                      "so far.",
                      what, num_skipped + 1));
    }
    return;
  }
  all_or_none(world_, [&] {
    throw UserError(fmt::format(
        "{} {} Lower learning_rate, set max_grad_norm, or look at the rows and the model's "
        "weights{}.",
        what,
        skips ? fmt::format("That is {} steps in a row, more than on_nonfinite: skip leaves out.",
                            skipped_in_a_row_)
              : "Nothing more was trained or saved.",
        skips ? "" : "; on_nonfinite: skip leaves such steps out"));
  });
}

}  // namespace longspan
