#include "longspan/saving/checkpoint_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/state_parts.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum_file.h"
#include "longspan/files/written_names.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/models/composite.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/sharded_saving.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// Shards with fewer elements per rank than this are not divided.
constexpr int64_t kLeastShared = 1024;

double now_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Returns a time later than that of every existing checkpoint, so that "newest" is right even if
/// the clock went back.
double saving_time(const OutputSettings& config) {
  double time = now_since_1970();
  for (const FoundCheckpoint& found : find_checkpoints(config)) {
    time = std::max(time, found.saved_at + 1e-3);
  }
  return time;
}

/// Waits until the folder is visible: on a network disk, a folder that rank 0 has just made may
/// appear late.
bool appears(const std::string& folder) {
  std::error_code error;
  for (int i = 0; i < 10; ++i) {
    if (fs::is_directory(folder, error)) return true;
    for (const auto& entry : fs::directory_iterator(fs::path(folder).parent_path(), error)) {
      static_cast<void>(entry);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

std::string run_name(const StateSource& state) {
  return fmt::format("{} {} {}", state.parameter, state.begin, state.end);
}

/// Divides the shards among the ranks that hold them and see the folder. Returns this rank's file
/// in the folder, and its shards; no name: none. Collective; throws as all_or_none.
std::pair<std::string, std::vector<StateSource>> divide_states(
    const std::string& folder, const std::vector<StateSource>& states, const Group& world) {
  const std::vector<bool> sees_it = gather_answers(world, appears(folder));
  std::string mine;
  for (const StateSource& state : states) mine += run_name(state) + "\n";
  int num_writers = 0, my_number = -1;              // among the ranks that see the folder
  std::map<std::string, std::vector<int>> holders;  // of each shard, as indices of writers
  const std::vector<std::string> texts = world.gather_text(mine);
  for (int rank = 0; rank < world.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    const bool writes = sees_it[rank];
    for (std::string line; std::getline(lines, line);) {
      auto& places = holders[line];
      if (writes) places.push_back(num_writers);
    }
    if (!writes) continue;
    if (rank == world.rank()) my_number = num_writers;
    ++num_writers;
  }
  std::string name;
  std::vector<StateSource> shards;
  all_or_none(world, [&] {
    for (const auto& [run, places] : holders) {
      if (!places.empty()) continue;
      throw UserError(fmt::format(
          "{} cannot be written: no process that holds the optimizer's state of {} sees that "
          "folder. With states that are divided among processes, output_dir must be on a disk that "
          "all of them share.",
          folder, run.substr(0, run.find(' '))));
    }
    if (my_number < 0) return;
    for (const StateSource& state : states) {
      const auto run = holders.find(run_name(state));
      const std::vector<int>& places = run->second;
      const int64_t size = state.end - state.begin, parts = std::ssize(places);
      const int64_t place = std::ranges::find(places, my_number) - places.begin();
      if (size < kLeastShared * parts) {
        // One of the holders, in turn, writes the whole shard.
        if (std::distance(holders.begin(), run) % parts == place) shards.push_back(state);
      } else {
        shards.push_back(part_of(state, state.begin + size * place / parts,
                                 state.begin + size * (place + 1) / parts));
      }
    }
    name = state_part_name(my_number + 1, num_writers);
  });
  return {name, shards};
}

/// Returns the parameters that write_model() writes, copied.
std::vector<NamedTensor> copied_parameters(const std::vector<NamedTensor>& parameters,
                                           const SavedModel& model, HostCopies& copies) {
  std::vector<NamedTensor> copied;
  for (const auto& [name, tensor] : parameters) {
    const ParameterSpec& spec = model.specs.of(name);
    const bool of_head = is_value_head(spec.role);
    if (model.lora && !of_head && !is_of_adapter(model, name)) continue;
    const at::ScalarType dtype =
        model.lora || of_head ? tensor.scalar_type() : stored_dtype(spec, model.dtype);
    copied.push_back({name, copies.add(tensor, dtype)});
  }
  return copied;
}

/// Returns the shard with copies of its tensors.
StateSource copied_state(StateSource source, HostCopies& copies) {
  StateShard shard = source.make();
  for (const auto& [what, dtype] : source.dtypes) {
    at::Tensor& values = shard.tensors.at(what);
    values = copies.add(values, dtype);
  }
  source.make = [shard = std::move(shard)] { return shard; };
  return source;
}

/// Removes the checkpoint that a new one has replaced. If it holds foreign files, it stays under a
/// visible name.
void remove_replaced(const std::string& folder, const std::string& shown) {
  if (foreign_entry(folder).empty()) return remove_own_folder(folder);
  std::error_code error;
  std::string kept = shown + ".kept";
  for (int number = 2; fs::exists(fs::symlink_status(kept, error)); ++number) {
    kept = fmt::format("{}.kept-{}", shown, number);
  }
  fs::rename(folder, kept);
}

}  // namespace

/// A rank's part of the checkpoint, and the results of its work.
struct CheckpointWrite::Job {
  const OutputSettings config;
  const ModelSaver saver;
  const int rank;
  const std::string output_dir, name;
  const std::string target = output_dir + "/" + name;
  const std::string path = fmt::format("{}/.{}.partial", output_dir, name);
  std::optional<TemporaryFolder> temporary = {};  // rank 0
  // Content
  std::vector<NamedTensor> parameters = {};
  std::optional<GatheredModel> gathered = {};
  std::string part = {};  // file of the state; empty: none
  std::vector<StateSource> shards = {};
  std::optional<TrainingState> state = {};
  std::map<std::string, std::string> texts = {};
  // Results
  ChecksumTable mine = {}, table = {};  // of this rank's files; on rank 0 of all files
  int reader = -1, num_readers = 0;     // among the ranks that see the folder
  std::string problem = {};             // of the checkpoint that was read back

  /// Copies all tensors that are not copies yet.
  void copy(HostCopies& copies) {
    if (gathered && gathered->failure) std::rethrow_exception(gathered->failure);
    parameters = rank == 0 && !gathered ? copied_parameters(parameters, saver.model(), copies)
                                        : std::vector<NamedTensor>();
    for (StateSource& shard : shards) shard = copied_state(std::move(shard), copies);
    copies.wait();
  }

  void write() {
    if (gathered) {
      write_gathered(path, saver.model(), *gathered, rank);
    } else if (rank == 0) {
      saver.write_model(path, parameters);
    }
    if (rank == 0) write_rest();
    if (!part.empty()) write_state_part(path + "/" + part, shards);
    for (const std::string& file : {gathered ? gathered->file : "", part}) {
      if (!file.empty()) mine[file] = checksum_of_file(path + "/" + file);
    }
  }

  void write_rest() const {
    for (const auto& [file, text] : texts) write_file_atomically(path + "/" + file, text);
    if (!state) return;
    TrainingState written = *state;
    written.saved_at = saving_time(config);
    write_training_state(path, written);
  }

  void place() {
    if (rank != 0) return;
    on_disk(target, [&] {
      table.merge(checksums_of(path, table));
      if (state) sync_folder(path + "/" + kStateFolder);
      write_checksum_file(path, table);
      sync_folder(path);
      const UninterruptedScope uninterrupted;
      const std::string replaced = name_for_replaced(output_dir, name);
      put_in_place(path, target, replaced);
      remove_replaced(replaced, target);
    });
    temporary.reset();
  }

  void read_back() {
    if (reader >= 0) problem = broken_file(target, reader, num_readers, ReadFrom::kDisk);
  }

  void remove_old() const {
    if (!problem.empty()) {
      throw UserError(fmt::format("{} does not read back as it was written: {}. Check the disk.",
                                  target, problem));
    }
    if (rank != 0) return;
    on_disk(output_dir,
            [&] { remove_old_checkpoints(output_dir, name, config.save_total_limit.value_or(0)); });
  }
};

CheckpointWrite::CheckpointWrite(const CheckpointPlace& place, const CheckpointContent& content,
                                 const OutputSettings& config, const ModelSaver& saver,
                                 const Group& world, Notices& notices, HostCopies* copies)
    : world_(world),
      step_(place.step),
      job_(new Job{.config = config,
                   .saver = saver,
                   .rank = world.rank(),
                   .output_dir = place.output_dir,
                   .name = checkpoint_name(place.step)}) {
  Job& job = *job_;
  job.parameters = content.parameters;
  job.state = content.state;
  job.texts = content.texts;
  all_or_none_patiently(world, notices, [&] {
    if (job.rank != 0) return;
    job.temporary.emplace(job.path);
    if (content.state) {
      on_disk(job.path, [&] { fs::create_directory(job.path + "/" + kStateFolder); });
    }
  });
  if (content.state) {
    std::tie(job.part, job.shards) = divide_states(job.path, content.states, world);
  }
  if (content.sharded != nullptr) {
    job.gathered = copies != nullptr
                       ? gather_model(saver.model(), *content.sharded, world, *copies)
                       : write_weights(job.path, saver.model(), *content.sharded, world, notices);
  }
  if (copies != nullptr) all_or_none(world, [&] { job.copy(*copies); });
}

CheckpointWrite::~CheckpointWrite() = default;

std::function<void()> CheckpointWrite::work() const {
  return [job = job_, phase = phase_] {
    switch (phase) {
      case Phase::kWrite:
        return job->write();
      case Phase::kPlace:
        return job->place();
      case Phase::kReadBack:
        return job->read_back();
      case Phase::kRemoveOld:
        return job->remove_old();
      case Phase::kDone:
        return;
    }
  };
}

bool CheckpointWrite::go_on() {
  Job& job = *job_;
  switch (phase_) {
    case Phase::kWrite: {
      const std::vector<std::string> tables = world_.gather_text(table_text(job.mine));
      if (job.rank == 0) {
        for (const std::string& text : tables) job.table.merge(table_from(text));
      }
      phase_ = Phase::kPlace;
      return true;
    }
    case Phase::kPlace: {
      job.parameters.clear();
      job.gathered.reset();
      job.shards.clear();
      phase_ = Phase::kDone;
      if (!job.config.save_total_limit) return false;
      // Older checkpoints stay until the new one has been read back, by the ranks that see it.
      std::error_code error;
      const std::vector<bool> sees = gather_answers(world_, fs::is_directory(job.target, error));
      for (int rank = 0; rank < world_.size(); ++rank) {
        if (!sees[rank]) continue;
        if (rank == world_.rank()) job.reader = job.num_readers;
        ++job.num_readers;
      }
      phase_ = Phase::kReadBack;
      return true;
    }
    case Phase::kReadBack:
      for (const std::string& problem : world_.gather_text(job.problem)) {
        if (job.problem.empty()) job.problem = problem;
      }
      phase_ = Phase::kRemoveOld;
      return true;
    case Phase::kRemoveOld:
    case Phase::kDone:
      phase_ = Phase::kDone;
      return false;
  }
  return false;
}

const std::string& CheckpointWrite::folder() const { return job_->target; }

int64_t CheckpointWrite::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& [file, checksum] : job_->table) bytes += checksum.size;
  return bytes;
}

}  // namespace longspan
