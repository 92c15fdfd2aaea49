#include "longspan/train/nonfinite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <set>
#include <sstream>

#include "longspan/base/number_text.h"
#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// Limit for on_nonfinite: skip, since a model with broken weights would continue forever.
constexpr int64_t kMostSkippedInARow = 20;
constexpr size_t kMostNamedRows = 3, kMostRows = 8;

/// Rows of one micro-batch, by their indices in the training set (kUnnumbered), and their loss.
struct RowLoss {
  std::vector<int64_t> rows;
  double loss;
};

/// "row 3, 4 of the training set (counted from 0), own loss nan, nan"; "streamed rows, which have
/// no numbers, own loss nan".
std::string named_rows(std::vector<RowLoss> micro_batches) {
  const size_t num_all = micro_batches.size();
  micro_batches.resize(std::min(num_all, kMostRows));
  std::vector<std::string> rows, losses;
  for (const RowLoss& row : micro_batches) {
    rows.push_back(fmt::format("{}", fmt::join(row.rows, ", ")));
    losses.push_back(number_text(row.loss));
  }
  if (!micro_batches.empty() && micro_batches.front().rows.front() == kUnnumbered) {
    return fmt::format("streamed rows, which have no numbers, own loss {}{}",
                       fmt::join(losses, ", "),
                       num_all > kMostRows ? fmt::format(" and {} more", num_all - kMostRows) : "");
  }
  return fmt::format("row {}{} of the training set (counted from 0), own loss {}",
                     fmt::join(rows, ", "),
                     num_all > kMostRows ? fmt::format(" and {} more", num_all - kMostRows) : "",
                     fmt::join(losses, ", "));
}

/// Returns the rows of all data-parallel groups that may be the cause. Each group sends its own
/// rows, one micro-batch per line: the loss and the rows' indices. Collective.
std::vector<RowLoss> rows_at_fault(const NonfiniteStep& step, const Mesh& mesh) {
  std::string mine;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (step.rows[i].examples.empty()) continue;
    const double loss = step.own_losses[i];
    if (!step.rows[i].leads() || (step.in_loss() && std::isfinite(loss))) continue;
    std::vector<int64_t> numbers;
    for (const ExamplePointer& example : step.rows[i].examples) numbers.push_back(example->number);
    mine += fmt::format("{} {}\n", number_text(loss), fmt::join(numbers, " "));
  }
  std::vector<RowLoss> rows;
  std::istringstream lines(fmt::format("{}", fmt::join(mesh.world.gather_text(mine), "")));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string loss;
    words >> loss;
    rows.push_back(
        {{std::istream_iterator<int64_t>(words), {}}, std::strtod(loss.c_str(), nullptr)});
  }
  // Rows without a finite loss come in data order, the others by descending loss.
  std::ranges::sort(rows, [&](const RowLoss& a, const RowLoss& b) {
    return !step.in_loss() && a.loss != b.loss ? a.loss > b.loss : a.rows < b.rows;
  });
  return rows;
}

/// Returns the parameters of all ranks whose gradient is not finite, each once. Collective.
std::vector<std::string> parameters_at_fault(const ModelUpdate& update, const Group& world) {
  std::string mine;
  for (const std::string& name : nonfinite_gradients(update.trained())) mine += name + "\n";
  std::istringstream lines(fmt::format("{}", fmt::join(world.gather_text(mine), "")));
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (std::string name; std::getline(lines, name);) {
    if (seen.insert(name).second) names.push_back(name);
  }
  return names;
}

}  // namespace

bool NonfiniteStep::in_loss() const { return !std::isfinite(loss); }

NonfiniteSteps::NonfiniteSteps(OnNonfinite rule, const Mesh& mesh, const ModelUpdate& update,
                               Events& events)
    : rule_(rule), mesh_(mesh), update_(update), events_(events) {}

std::string NonfiniteSteps::source_of(const NonfiniteStep& step) const {
  const std::vector<RowLoss> rows = rows_at_fault(step, mesh_);
  if (step.in_loss())
    return rows.empty() ? "" : fmt::format(" It comes from {}.", named_rows(rows));
  std::vector<std::string> names = parameters_at_fault(update_, mesh_.world);
  if (names.empty()) return "";
  const size_t num_names = names.size();
  names.resize(std::min(num_names, kMostNamedRows));
  return fmt::format(
      " It comes from the gradient of {}{}. The step saw {}.", fmt::join(names, ", "),
      num_names > kMostNamedRows ? " and " + counted(num_names - kMostNamedRows, "other parameter")
                                 : "",
      named_rows(rows));
}

void NonfiniteSteps::leave_out(const NonfiniteStep& step, int64_t num_skipped) {
  const std::string what = fmt::format("The {} of step {} is {}.{} The learning rate is {}.",
                                       step.in_loss() ? "loss" : "gradient norm", step.step + 1,
                                       number_text(step.in_loss() ? step.loss : step.grad_norm),
                                       source_of(step), number_text(step.learning_rate));
  ++num_in_series_;
  const bool skips = rule_ == OnNonfinite::kSkip;
  if (skips && num_in_series_ <= kMostSkippedInARow) {
    if (mesh_.world.rank() == 0) {
      events_.say(
          fmt::format("warning: {} The update is left out, as on_nonfinite: skip asks; {} "
                      "so far.",
                      what, num_skipped + 1));
    }
    return;
  }
  all_or_none(mesh_.world, [&] {
    throw UserError(fmt::format(
        "{} {} Lower learning_rate, set max_grad_norm, or look at the rows and the model's "
        "weights{}.",
        what,
        skips ? fmt::format("That is {} steps in a row, more than on_nonfinite: skip leaves out.",
                            num_in_series_)
              : "Nothing more was trained or saved.",
        skips ? "" : "; on_nonfinite: skip leaves such steps out"));
  });
}

}  // namespace longspan
