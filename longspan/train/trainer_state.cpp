// How a Trainer's state gets into checkpoints and out of them, and what becomes of numbers that are
// not finite.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <set>
#include <sstream>

#include "longspan/checkpoint/state_parts.h"
#include "longspan/config/number_text.h"
#include "longspan/config/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/saving/output_folders.h"
#include "longspan/text/counted.h"
#include "longspan/train/trainer.h"

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

std::vector<StateSource> Trainer::state_with_masters() const {
  std::vector<StateSource> states = update_.optimizer().state();
  for (size_t i = 0; i < states.size(); ++i) {
    const ParameterPiece& trained = update_.pieces()[i];
    if (saver_.saves_exactly({trained.parameter, trained.values})) continue;
    states[i] = with_master(std::move(states[i]), trained.values);
  }
  return states;
}

DiskFacts Trainer::disk() const {
  const ObjectiveContext& context = job_.context;
  DiskFacts facts = disk_facts(context.config, context.model.parameters(), saver_.model().specs,
                               saver_.model().lora.has_value(),
                               static_cast<int64_t>(c10::elementSize(saver_.model().dtype)));
  facts.num_processes = context.mesh.world.size();
  facts.divided = is_divided();
  facts.num_saves = num_saves(context.config.save_strategy, save_steps_, totals_.progress.step,
                              steps_.total_steps, steps_.steps_per_epoch);
  return facts;
}

bool Trainer::has_room_again() const {
  const Group& world = job_.context.mesh.world;
  const auto has_room = [&] {
    return room_in(job_.context.config.output_dir).may_take(disk_need(disk()).checkpoint);
  };
  return world.gather_text(is_main() && has_room() ? "yes" : "no")[0] == "yes";
}

void Trainer::save_checkpoint() {
  try {
    save_checkpoint_into(job_.context.config.output_dir);
    checkpoint_owed_ = false;
  } catch (const std::exception& error) {
    if (!is_agreed(job_.context.mesh.world, error) || !is_disk_full(error)) throw;
    checkpoint_owed_ = true;
    console_.say(fmt::format(
        "warning: checkpoint-{} is not saved: {} Training goes on; {}. The next one is saved as "
        "soon as there is room.",
        totals_.progress.step, error.what(),
        checkpoints_.last().empty() ? "there is no checkpoint yet"
                                    : fmt::format("{} is whole", checkpoints_.last())));
  }
}

bool Trainer::save_last_checkpoint() {
  return !job_.patient_saver
              .save({.name = fmt::format("checkpoint-{}", totals_.progress.step),
                     .num_bytes = disk_need(disk()).checkpoint,
                     .kept = checkpoints_.last_text()},
                    output_folders(job_.context.config),
                    [&](const std::string& folder) { save_checkpoint_into(folder); })
              .empty();
}

void Trainer::save_checkpoint_into(const std::string& output_dir) {
  const ObjectiveContext& context = job_.context;
  const int64_t step = totals_.progress.step;
  job_.heartbeat.stands_at(step, fmt::format("the saving of checkpoint-{}", step));
  CheckpointContent content{
      .parameters = context.model.parameters(),
      .states = {},
      .state = std::nullopt,
      .add_files = [&](const std::string& path) { log_.write_checkpoint(path, totals_.progress); }};
  if (!context.config.save_only_model) {
    TrainingState state{.launch = job_.launch.id,
                        .job = job_.launch.job,
                        .world_size = context.mesh.world.size(),
                        .sequence_size = context.mesh.sequence.size(),
                        .identity = job_.identity,
                        .totals = totals_,
                        .averages = {}};
    for (const std::string& text : context.mesh.world.gather_text(text_of(averages_.sums()))) {
      state.averages.push_back(averages_from(text));
    }
    content.states = state_with_masters();
    content.state = std::move(state);
  }
  if (is_divided()) content.sharded = job_.sharded;
  const std::string folder = checkpoints_.save(output_dir, step, content);
  last_saved_step_ = step;
  if (is_main()) console_.say(fmt::format("Saved {}", folder));
}

void Trainer::resume(const ResumePoint& from) {
  const Group& world = job_.context.mesh.world;
  all_or_none_patiently(world, job_.notices, [&] {
    const RunTotals& totals = from.state.totals;
    if (totals.progress.step > steps_.total_steps) {
      throw UserError(fmt::format(
          "{} is at step {}, and this configuration ends at step {}. Raise num_train_epochs or "
          "max_steps, or name an earlier checkpoint in resume_from_checkpoint.",
          from.folder, totals.progress.step, steps_.total_steps));
    }
    load_optimizer(StateReader(from.folder), update_.optimizer());
    totals_ = totals;
    totals_.progress.total_steps = steps_.total_steps;
    averages_.set(averages_for(from.state, world.rank(), world.size()));
    last_saved_step_ = totals_.progress.step;
    if (is_main()) log_.restore(from.folder);
  });
  update_.publish();
}

std::string Trainer::source_of_nonfinite(int64_t step, const std::vector<double>& own_losses,
                                         bool in_loss) const {
  const Group& world = job_.context.mesh.world;
  // Each data-parallel group knows its own rows: a line each, the loss and the rows' numbers.
  std::string mine;
  const StepPlace place = steps_.place(step);
  size_t number = 0;
  for (int64_t batch = place.begin_batch; batch < place.end_batch; ++batch) {
    const std::vector<int64_t> indices = loader_.rows(place.epoch, batch);
    if (indices.empty()) {
      if (job_.context.idle_rows) ++number;
      continue;
    }
    const double loss = own_losses[number++];
    if (job_.context.mesh.sequence.rank() != 0 || (in_loss && std::isfinite(loss))) continue;
    mine += fmt::format("{} {}\n", number_text(loss), fmt::join(indices, " "));
  }
  std::vector<RowLoss> rows;
  std::istringstream row_lines(fmt::format("{}", fmt::join(world.gather_text(mine), "")));
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
  std::istringstream lines(fmt::format("{}", fmt::join(world.gather_text(mine), "")));
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

void Trainer::leave_out(StepResult& result, int64_t step, const std::vector<double>& own_losses) {
  const bool in_loss = !std::isfinite(result.loss);
  const std::string where = source_of_nonfinite(step, own_losses, in_loss);
  const std::string what = fmt::format("The {} of step {} is {}.{} The learning rate is {}.",
                                       in_loss ? "loss" : "gradient norm", step + 1,
                                       number_text(in_loss ? result.loss : result.grad_norm), where,
                                       number_text(result.learning_rate));
  ++skipped_in_a_row_;
  const bool skips = job_.context.config.on_nonfinite == "skip";
  if (skips && skipped_in_a_row_ <= kMostSkippedInARow) {
    result.skipped = true;
    if (is_main()) {
      console_.say(
          fmt::format("warning: {} The update is left out, as on_nonfinite: skip asks; {} "
                      "so far.",
                      what, totals_.num_skipped + 1));
    }
    return;
  }
  all_or_none(job_.context.mesh.world, [&] {
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
