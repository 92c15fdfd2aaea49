// `longspan bench attention`: compares the sequence-parallel methods to undistributed attention.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cli/bench_network.h"
#include "cli/bench_parts.h"
#include "cli/commands.h"
#include "cli/launcher.h"
#include "cli/options.h"
#include "cli/process/cores.h"
#include "cli/process/launcher_environment.h"
#include "cli/process/lost_gpus.h"
#include "cli/process/resources.h"
#include "longspan/base/user_error.h"
#include "longspan/bench/attention_bench.h"
#include "longspan/bench/bench_report.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/input/numbers.h"
#include "longspan/liveness/agreement.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/models/dtype_words.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

constexpr const char* kCommand = "bench attention";
constexpr int64_t kMostDocuments = 1'000'000, kMostThreads = 4096;

/// A single number: that many documents of about equal length. Several numbers: their lengths.
std::vector<int64_t> read_documents(const Options& options) {
  const std::optional<int64_t> tokens = options.whole_number("tokens", 1, kMostIndexed);
  const std::vector<int64_t> given = options.whole_numbers("documents", 1, kMostIndexed);
  if (given.size() > 1) {
    const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
    if (tokens && *tokens != sum) {
      throw UserError(
          fmt::format("{}: --documents adds up to {}, but --tokens is {}; leave --tokens out",
                      kCommand, counted(sum, "token"), *tokens));
    }
    return given;
  }
  const int64_t all = tokens.value_or(8192), count = given.empty() ? 1 : given[0];
  if (count > kMostDocuments) {
    throw UserError(
        fmt::format("{}: --documents {}: at most {} are allowed", kCommand, count, kMostDocuments));
  }
  if (count > all) {
    throw UserError(fmt::format("{}: --documents {}: {} are too few for so many documents",
                                kCommand, count, counted(all, "token")));
  }
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(all * (i + 1) / count - all * i / count);
  return lengths;
}

at::ScalarType read_dtype(const Options& options) {
  const std::optional<std::string> word = options.text("dtype");
  if (!word) return at::kFloat;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (*word == short_name_of(dtype)) return dtype;
  }
  throw UserError(fmt::format("{}: --dtype {}: choose {} or {}", kCommand, *word,
                              short_name_of(at::kFloat), short_name_of(at::kBFloat16)));
}

ProblemShape read_shape(const Options& options) {
  ProblemShape shape;
  constexpr int64_t kMost = 1 << 20;  // keeps products from overflowing
  shape.num_heads = options.whole_number("heads", 1, kMost).value_or(8);
  shape.num_kv_heads =
      options.whole_number("kv-heads", 1, kMost).value_or(std::min<int64_t>(2, shape.num_heads));
  shape.head_dim = options.whole_number("head-dim", 2, kMost).value_or(64);
  if (shape.num_heads % shape.num_kv_heads != 0) {
    throw UserError(fmt::format("{}: --kv-heads {} must divide --heads {}", kCommand,
                                shape.num_kv_heads, shape.num_heads));
  }
  shape.layer = options.flag("layer");
  shape.checkpointing = options.flag("checkpointing");
  shape.model_dim =
      options.whole_number("model-dim", 1, kMostIndexed).value_or(shape.num_heads * shape.head_dim);
  if (shape.layer && shape.head_dim % 2 != 0) {
    throw UserError(fmt::format("{}: --head-dim {}: rotary embedding in --layer needs it even",
                                kCommand, shape.head_dim));
  }
  shape.dtype = shape.rounded_to = read_dtype(options);
  return shape;
}

/// Each rank makes at least its share of the queries, and all ranks may be on this machine.
void require_room_for_queries(const AttentionBenchOptions& bench) {
  int64_t num_tokens = 0;
  for (const int64_t length : bench.document_lengths) num_tokens += length;
  const ProblemShape& shape = bench.shape;
  const int64_t width =
      std::max(shape.num_heads * shape.head_dim, shape.layer ? shape.model_dim : 0);
  const int64_t num_bytes =
      product_of({num_tokens, width, shape.dtype == at::kFloat ? 4 : 2}).value_or(INT64_MAX);
  const MachineMemory machine = machine_memory();
  if (num_bytes <= machine.bytes) return;
  throw UserError(fmt::format("{}: {} of {} elements each need {}, and {}", kCommand,
                              counted(num_tokens, "token"), width, name_bytes(num_bytes),
                              machine.text()));
}

AttentionBenchOptions read_options(const Options& options) {
  AttentionBenchOptions bench;
  bench.shape = read_shape(options);
  bench.document_lengths = read_documents(options);
  require_room_for_queries(bench);
  for (const std::string& name : options.list("methods")) {
    bench.methods.push_back(method_named(name));
  }
  bench.undistributed = !options.flag("no-undistributed");
  const std::vector<int64_t> waves = options.whole_numbers("waves", 1, kMostIndexed);
  if (!waves.empty()) bench.head_waves.assign(waves.begin(), waves.end());
  const auto number = [&](const char* name, int64_t most = kMostIndexed) -> std::optional<int> {
    const auto given = options.whole_number(name, 1, most);
    return given ? std::optional(static_cast<int>(*given)) : std::nullopt;
  };
  bench.ulysses_size = number("ulysses-degree");
  bench.ring_size = number("ring-degree");
  bench.window_size = number("window");
  bench.threads = number("threads", kMostThreads);
  bench.num_cores = num_cores();
  bench.repeats = number("repeats").value_or(5);
  bench.warmup = static_cast<int>(options.whole_number("warmup", 0, kMostIndexed).value_or(1));
  return bench;
}

constexpr const char* kAttentionFolder = "output/attention_bench";

int work_of_bench(const Options& options, AttentionBenchOptions bench, const DeviceChoice& device,
                  const Rendezvous& where) {
  const BenchDevice on = bench_device(device, where.local_rank);
  bench.shape.device = on.device;
  if (bench.threads) at::set_num_threads(*bench.threads);
  if (where.has_peers()) quiet_c10d();
  end_soon_with_lost_gpus();
  tell_of_lost_gpus([where](const std::string& reason) {
    return fmt::format("Rank {} of {}: {}", where.rank, where.world_size,
                       lost_gpus_message(reason));
  });
  const AttentionBenchResult result =
      run_attention_bench(bench, where, on, at::set_num_threads, say_bench);
  if (where.rank != 0) return 0;
  say_bench(fmt::format("\n{}", bench_table(result)));
  const fs::path folder = options.text("output").value_or(kAttentionFolder);
  const fs::path json = folder / "attention_bench.json", picture = folder / "attention_bench.png";
  std::ofstream file(json);
  file << bench_json(result);
  file.close();
  if (!file) throw UserError(fmt::format("{}: cannot write {}", kCommand, json.string()));
  write_bench_picture(picture.string(), result);
  say_bench(fmt::format("All numbers: {}\nPicture: {}", json.string(), picture.string()));
  return 0;
}

int run_attention(const Arguments& arguments) {
  const Options options(
      kCommand, arguments,
      {"tokens", "ranks", "heads", "kv-heads", "head-dim", "model-dim", "dtype", "ulysses-degree",
       "ring-degree", "window", "repeats", "warmup", "threads", "output", "device"},
      {"documents", "methods", "waves"},
      {"layer", "checkpointing", "no-undistributed", "share-gpus"});
  if (is_launched()) {
    const Rendezvous where = rendezvous_from_environment();
    AttentionBenchOptions bench;
    DeviceChoice device;
    rank_0_first(where.rank, [&] {
      bench = read_options(options);
      device = read_device(kCommand, options);
      require_gpus(device, where.processes_on_gpus());
      const auto ranks = options.whole_number("ranks", 1);
      if (ranks && *ranks != where.world_size) {
        throw UserError(fmt::format("{}: --ranks {}, but the launcher started {}", kCommand, *ranks,
                                    counted(where.world_size, "process")));
      }
      plans_of(bench, where.world_size);
      make_output_folder(kCommand, options.text("output").value_or(kAttentionFolder));
    });
    return work_of_bench(options, bench, device, where);
  }
  const AttentionBenchOptions bench = read_options(options);
  const DeviceChoice device = read_device(kCommand, options);
  const LaunchPlan plan = plan_bench(kCommand, options, device);
  plans_of(bench, plan.world_size());
  make_output_folder(kCommand, options.text("output").value_or(kAttentionFolder));
  if (plan.world_size() == 1) return work_of_bench(options, bench, device, {});
  Arguments words{"bench", "attention"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  quiet_c10d();
  check_meeting_place(plan);
  launch(plan, words);
}

int run_bench(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  if (name != "attention" && name != "network") {
    throw UserError(
        fmt::format("bench: {}; the benchmarks are attention and network: longspan bench attention "
                    "[--option value]",
                    name.empty() ? "the name of a benchmark is missing"
                                 : fmt::format("there is no benchmark {}", name)));
  }
  const Arguments options(arguments.begin() + 1, arguments.end());
  return name == "network" ? run_bench_network(options) : run_attention(options);
}

constexpr const char* kBenchHelp =
    R"(Measures the sequence-parallel methods beside undistributed attention, a row each: time forward and
backward, tokens/s, load of the ranks, memory, bytes sent beside the formula, and the error.

  longspan bench attention
  longspan bench attention --tokens 32768 --ranks 4 --heads 14 --methods balanced-ulysses xtuner-ulysses
  longspan bench attention --layer --methods ulysses,async-ulysses
  longspan bench attention --heads 32 --kv-heads 8 --methods ulysses --waves 1,2,8

  --tokens N            of the row [8192]
  --documents N         that many documents of equal length [1]; or their lengths: 4096,3000,1096
  --ranks P             processes [2, or those that the launcher started; on GPUs one for each]
  --device auto|cuda|cpu  [auto]
  --share-gpus          several processes may use a GPU, and exchange through the host
  --heads N             query heads [8]
  --kv-heads M          [2]
  --head-dim H          [64]
  --dtype fp32|bf16     [fp32]
  --methods NAME ...    values of sequence_parallel_mode [all that can split the heads]
  --no-undistributed    leaves out the row to compare with
  --waves N ...         head waves; a row each for the modes that have them [{waves}]
  --ulysses-degree U, --ring-degree R, --window W
                        of {degrees} [chosen]
  --layer               times the attention sublayer of a decoder: norm, projections, rotary
                        embedding, attention, output projection
  --model-dim D         of --layer [heads x head-dim]
  --checkpointing       forward without autograd, replayed before the backward
  --threads N           of each rank [the cores, shared out]
  --repeats N           passes that count [5]
  --warmup N            passes before them [1]
  --output FOLDER       attention_bench.json and attention_bench.png [output/attention_bench]

Several processes are started through torchrun; started by torchrun, mpirun or srun, on one machine
or more, longspan joins the processes that it finds. The methods take turns (A B C, C B A ...).
Undistributed attention runs on rank 0 alone with the threads of all ranks of its machine (no more than
it has cores), while the others wait. On GPUs time is taken when they have done all.

)";

std::string help_of_bench() {
  std::string waves = "1";
  for (const Method* method : methods_that_take(kHeadWaves)) {
    const int own = method->head_waves.own;
    if (own > 1) waves += fmt::format("; {} {}", method->name, own);
  }
  return fmt::format(kBenchHelp, fmt::arg("waves", waves),
                     fmt::arg("degrees", names_of(methods_that_take(kUlyssesDegree), " and "))) +
         kBenchNetworkHelp;
}

}  // namespace

Command bench_command() {
  return {"bench",
          "measure the sequence-parallel methods, or the network: longspan bench attention",
          help_of_bench(), run_bench,
          /*computes=*/true};
}

}  // namespace longspan
