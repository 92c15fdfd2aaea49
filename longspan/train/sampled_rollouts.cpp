#include "longspan/train/sampled_rollouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/data/permutation.h"
#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/kernels/dropout.h"
#include "longspan/liveness/agreement.h"
#include "longspan/rollouts/rollout_check.h"
#include "longspan/rollouts/rollout_file.h"
#include "longspan/rollouts/rollout_line.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// Returns the file of a batch.
std::string lines_of(const std::vector<Rollout>& rollouts) {
  std::string lines;
  for (const Rollout& rollout : rollouts) lines += write_rollout(rollout) + "\n";
  return lines;
}

std::string next_digest(const std::string& digest, const std::string& lines) {
  return fmt::format("{:016x}", fnv1a(digest + lines));
}

constexpr const char* kEnvironment = "environment";  // in Rollout::rewards

/// Returns the tokens of the last answer without its end token.
std::vector<int32_t> last_answer(const Rollout& rollout) {
  auto end = std::ssize(rollout.mask);
  while (end > 0 && !rollout.mask[end - 1]) --end;
  auto begin = end;
  while (begin > 0 && rollout.mask[begin - 1]) --begin;
  if (!rollout.is_truncated && end > begin) --end;
  return {rollout.token_ids.begin() + begin, rollout.token_ids.begin() + end};
}

/// Returns the questions of a batch, as places in the data set. `seed`: of the order of a pass;
/// nullopt: the order of the data set.
std::vector<int64_t> places_of(int64_t batch, int64_t num_groups, int64_t size,
                               std::optional<int64_t> seed) {
  std::vector<int64_t> places, order;
  int64_t pass = -1;
  for (int64_t i = batch * num_groups; i < (batch + 1) * num_groups; ++i) {
    if (i / size != pass) {
      pass = i / size;
      if (seed) order = seeded_permutation(size, *seed, pass);
    }
    places.push_back(seed ? order[i % size] : i % size);
  }
  return places;
}

}  // namespace

SampledRollouts::SampledRollouts(Parts parts) : parts_(std::move(parts)) {
  if (parts_.run.needs.rewards) rewards_.emplace(parts_.run.policy);
  if (!parts_.resumed && parts_.run.world.rank() == 0) begin_folder();
}

void SampledRollouts::begin_folder() {
  const std::string name = parts_.folder + "/run-identity";
  std::optional<InputFile> file = InputFile::open_if_there(name, "identity of a run");
  if (parts_.goes_on && !parts_.identity.empty() && file &&
      file->read_all(kAnySize) == parts_.identity) {
    parts_.resumed = true;
    if (!parts_.source.is_of_rank_0()) return;
    parts_.run.events.say(fmt::format(
        "{} has rollouts of this run, which ended before its first checkpoint: they are used. To "
        "sample anew, set overwrite_output_dir: true.",
        parts_.folder));
    return;
  }
  keep_earlier_files();
  make_folder();
  write_file_atomically(name, parts_.identity);
}

void SampledRollouts::keep_earlier_files() const {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(parts_.folder, error))) return;
  std::string kept = parts_.folder + ".kept";
  for (int number = 2; fs::exists(fs::symlink_status(kept, error)); ++number) {
    kept = fmt::format("{}.kept-{}", parts_.folder, number);
  }
  fs::rename(parts_.folder, kept, error);
  if (error) {
    throw UserError(fmt::format("{}: the rollouts of an earlier run cannot be renamed to {}: {}",
                                parts_.folder, kept, error.message()));
  }
  parts_.run.events.say(fmt::format("Rollouts of an earlier run are kept in {}.", kept));
}

std::string SampledRollouts::file_of(int64_t batch) const {
  return fmt::format("{}/batch-{:06}.jsonl", parts_.folder, batch);
}

bool SampledRollouts::has_file(int64_t batch) const {
  std::error_code error;
  return parts_.resumed && std::filesystem::exists(file_of(batch), error);
}

std::vector<Rollout> SampledRollouts::read(int64_t batch, int64_t num_groups) const {
  std::vector<std::string> notes;
  // An answer that waits for its rewards has the environment's in `rewards` already.
  std::vector<Rollout> rollouts = read_rollouts(
      file_of(batch), {.needs_reward = false, .sums_rewards = false}, OnBadRow::kStop, notes);
  const int64_t N = parts_.run.policy.num_generations;
  bool fits = std::ssize(rollouts) == num_groups * N;
  for (int64_t i = 0; fits && i < std::ssize(rollouts); ++i) {
    fits = rollouts[i].group == rollouts[i / N * N].group;
  }
  if (fits) return rollouts;
  throw UserError(fmt::format(
      "{}: the file does not have {} of {} rollouts each, which a step needs. Resume with the "
      "num_generations and batch sizes of the run that wrote the file, or remove the file.",
      file_of(batch), counted(num_groups, "group"), N));
}

std::string SampledRollouts::digest(int64_t batch) const {
  if (parts_.source.is_of_rank_0()) {
    return batch < std::ssize(digests_) ? digests_[batch] : std::string();
  }
  std::optional<InputFile> file = InputFile::open_if_there(file_of(batch), "file of rollouts");
  return file ? next_digest("", file->read_all(kAnySize)) : std::string();
}

std::optional<std::vector<Rollout>> SampledRollouts::make(int64_t batch, int64_t num_groups,
                                                          int64_t policy_version, bool is_begun) {
  return parts_.source.is_of_rank_0() ? made_by_rank_0(batch, num_groups, policy_version, is_begun)
                                      : made_by_all(batch, num_groups, policy_version, is_begun);
}

std::optional<std::vector<Rollout>> SampledRollouts::made_by_all(int64_t batch, int64_t num_groups,
                                                                 int64_t policy_version,
                                                                 bool is_begun) {
  const RolloutRun& run = parts_.run;
  std::optional<std::vector<Rollout>> rollouts;
  if (is_begun) {
    all_or_none(run.world, [&] {
      if (run.world.rank() != 0) return;
      rollouts = read(batch, num_groups);
    });
    return rollouts;
  }
  Asked asked;
  all_or_none(run.world, [&] { asked = this->asked(batch, num_groups); });
  const int64_t version = parts_.source.update(policy_version);
  const Waiting waiting{.stops = run.stops, .say = {}};
  auto held = parts_.conversations.hold(asked.questions, version, asked.seed, waiting);
  all_or_none_patiently(run.world, run.notices, [&] {
    if (run.world.rank() == 0 && held) {
      rollouts = judged(asked, rollouts_of(asked, *std::move(held), version), waiting);
    }
  });
  return rollouts;
}

std::optional<std::vector<Rollout>> SampledRollouts::made_by_rank_0(int64_t batch,
                                                                    int64_t num_groups,
                                                                    int64_t policy_version,
                                                                    bool is_begun) {
  const RolloutRun& run = parts_.run;
  const bool is_main = run.world.rank() == 0;
  if (next_ < 0) next_ = batch;
  const int64_t last = std::min(batch + run.policy.async_steps, parts_.num_batches - 1);
  bool needs_answers = false;
  all_or_none(run.world, [&] {
    if (!is_main) return;
    for (int64_t one = next_; one <= last; ++one) needs_answers |= !has_file(one);
    if (is_begun && needs_answers && !has_file(batch)) {
      throw UserError(fmt::format(
          "{}: the file is missing, and the checkpoint was saved between updates on the file's "
          "rollouts. Give the file, or resume from another checkpoint.",
          file_of(batch)));
    }
  });
  // The server gets new weights at the same batches, however long its answers take.
  if (gather_answers(run.world, needs_answers)[0]) {
    policy_version_ = parts_.source.update(policy_version);
  }
  std::optional<std::vector<Rollout>> rollouts;
  all_or_none_patiently(run.world, run.notices, [&] {
    if (!is_main) return;
    begin_up_to(last, num_groups, policy_version_);
    rollouts = ahead_.take(
        batch, {.stops = run.stops, .say = [&](const std::string& line) { run.events.say(line); }});
    if (!rollouts) return;
    check_age(batch, *rollouts, policy_version);
    add_to_digests(batch, *rollouts);
  });
  next_ = last + 1;
  return rollouts;
}

void SampledRollouts::begin_up_to(int64_t last, int64_t num_groups, int64_t policy_version) {
  for (int64_t batch = next_; batch <= last; ++batch) {
    if (has_file(batch)) {
      ahead_.add(batch, [this, batch, num_groups](const Waiting& waiting) {
        waiting.say(fmt::format("Rollouts of batch {} are read from {}.", batch, file_of(batch)));
        std::vector<Rollout> rollouts = read(batch, num_groups);
        const bool is_judged =
            !rewards_ || std::ranges::all_of(rollouts, [](const Rollout& rollout) {
              return rollout.reward.has_value();
            });
        if (is_judged) return std::optional(std::move(rollouts));
        const Asked asked = this->asked(batch, num_groups);
        check_prompts(asked, rollouts);
        return judged(asked, std::move(rollouts), waiting);
      });
      continue;
    }
    ahead_.add(batch,
               [this, policy_version, asked = asked(batch, num_groups)](
                   const Waiting& waiting) -> std::optional<std::vector<Rollout>> {
                 auto held = parts_.conversations.hold(asked.questions, policy_version, asked.seed,
                                                       waiting);
                 if (!held) return std::nullopt;
                 std::vector<Rollout> rollouts =
                     rollouts_of(asked, *std::move(held), policy_version);
                 // A reward that fails loses no answer.
                 if (rewards_) write(asked.batch, rollouts);
                 return judged(asked, std::move(rollouts), waiting);
               });
  }
}

void SampledRollouts::check_age(int64_t batch, const std::vector<Rollout>& rollouts,
                                int64_t policy_version) const {
  const std::optional<int64_t> most = parts_.run.policy.max_staleness;
  if (!most) return;
  for (const Rollout& rollout : rollouts) {
    const int64_t age = policy_version - rollout.policy_version.value_or(policy_version);
    if (age <= *most) continue;
    throw UserError(
        fmt::format("{}: a rollout was sampled {} updates ago, and max_staleness is {}; raise it",
                    file_of(batch), age, *most));
  }
}

void SampledRollouts::add_to_digests(int64_t batch, const std::vector<Rollout>& rollouts) {
  const auto text_of_file = [&](int64_t one) {
    std::optional<InputFile> file = InputFile::open_if_there(file_of(one), "file of rollouts");
    if (file) return file->read_all(kAnySize);
    throw UserError(
        fmt::format("{}: the file is missing, and the checkpoint was trained on its rollouts. Give "
                    "the files of the run that saved the checkpoint.",
                    file_of(one)));
  };
  while (std::ssize(digests_) <= batch) {
    const int64_t one = std::ssize(digests_);
    digests_.push_back(next_digest(digests_.empty() ? "" : digests_.back(),
                                   one == batch ? lines_of(rollouts) : text_of_file(one)));
  }
}

SampledRollouts::Asked SampledRollouts::asked(int64_t batch, int64_t num_groups) const {
  Asked asked{.batch = batch,
              .questions = {},
              .seed = mix_seed(static_cast<uint64_t>(parts_.seed), static_cast<uint64_t>(batch))};
  const int64_t answer = parts_.run.policy.max_completion_length;
  int64_t group = 0;
  for (const int64_t place :
       places_of(batch, num_groups, parts_.questions.size(),
                 parts_.shuffles ? std::optional(parts_.seed) : std::nullopt)) {
    const ExamplePointer question = parts_.questions.example(place);
    const std::vector<int32_t>& prompt = question->documents.front().input_ids;
    if (std::ssize(prompt) + answer > parts_.cutoff_len) {
      throw UserError(fmt::format(
          "question {} of dataset has {} tokens; with an answer of {} (max_completion_length) it "
          "exceeds cutoff_len ({}). Raise cutoff_len, or remove the question.",
          question->number + 1, prompt.size(), answer, parts_.cutoff_len));
    }
    asked.questions.push_back({fmt::format("{}.{}", batch, group++), prompt, question->solution});
  }
  return asked;
}

void SampledRollouts::check_prompts(const Asked& asked,
                                    const std::vector<Rollout>& rollouts) const {
  const int64_t N = parts_.run.policy.num_generations;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const std::vector<int32_t>& prompt = asked.questions[i / N].prompt;
    const std::vector<int32_t>& ids = rollouts[i].token_ids;
    if (ids.size() >= prompt.size() && std::equal(prompt.begin(), prompt.end(), ids.begin())) {
      continue;
    }
    throw UserError(
        fmt::format("{}: rollout {} answers another question than the data set has in this place, "
                    "so its reward cannot be computed. Resume with the data set, template and seed "
                    "of the run that wrote the file, or remove the file.",
                    file_of(asked.batch), i + 1));
  }
}

bool SampledRollouts::add_rewards(const std::vector<JudgedAnswer>& answers, const Waiting& waiting,
                                  std::vector<Rollout>& rollouts) const {
  const auto rewards = rewards_->of(answers, waiting.stops);
  if (!rewards) return false;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    rollouts[i].rewards = (*rewards)[i];
    rollouts[i].reward = 0.0;
    for (const auto& [name, weight] : rewards_->weights()) {
      *rollouts[i].reward += weight * (*rewards)[i].at(name);
    }
  }
  return true;
}

std::vector<Rollout> SampledRollouts::rollouts_of(const Asked& asked,
                                                  std::vector<HeldConversation> held,
                                                  int64_t policy_version) const {
  const int64_t N = parts_.run.policy.num_generations;
  std::vector<Rollout> rollouts;
  for (size_t i = 0; i < held.size(); ++i) {
    Rollout& rollout = rollouts.emplace_back(std::move(held[i].rollout));
    rollout.group = asked.questions[i / N].name;
    rollout.policy_version = policy_version;
    if (held[i].reward) rollout.rewards = {{kEnvironment, *held[i].reward}};
  }
  return rollouts;
}

std::optional<std::vector<Rollout>> SampledRollouts::judged(const Asked& asked,
                                                            std::vector<Rollout> rollouts,
                                                            const Waiting& waiting) const {
  const int64_t N = parts_.run.policy.num_generations;
  std::vector<JudgedAnswer> texts;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const AskedQuestion& question = asked.questions[i / N];
    const Rollout& rollout = rollouts[i];
    const auto environment = rollout.rewards.find(kEnvironment);
    texts.push_back({.prompt = parts_.tokenizer.decode(question.prompt, true),
                     .answer = parts_.tokenizer.decode(last_answer(rollout), true),
                     .solution = question.solution,
                     .num_tokens = num_trained(rollout),
                     .is_truncated = rollout.is_truncated});
    if (environment != rollout.rewards.end()) texts.back().environment = environment->second;
  }
  if (rewards_ && !add_rewards(texts, waiting, rollouts)) return std::nullopt;
  write(asked.batch, rollouts);
  return rollouts;
}

void SampledRollouts::make_folder() const {
  std::error_code error;
  std::filesystem::create_directories(parts_.folder, error);
  if (error) {
    throw UserError(fmt::format("the folder {} for rollouts cannot be made: {}", parts_.folder,
                                error.message()));
  }
}

void SampledRollouts::write(int64_t batch, const std::vector<Rollout>& rollouts) const {
  make_folder();
  write_file_atomically(file_of(batch), lines_of(rollouts));
}

}  // namespace longspan
