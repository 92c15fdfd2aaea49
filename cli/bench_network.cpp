#include "cli/bench_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/bench_parts.h"
#include "cli/launcher.h"
#include "cli/options.h"
#include "cli/process/launcher_environment.h"
#include "cli/process/lost_gpus.h"
#include "cli/process/resources.h"
#include "longspan/base/user_error.h"
#include "longspan/bench/network_bench.h"
#include "longspan/cuda/cuda.h"
#include "longspan/liveness/agreement.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNetworkCommand = "bench network";
constexpr const char* kNetworkFolder = "output/network_bench";
constexpr int64_t kMostMiB = 4096;

NetworkBenchOptions read_network_options(const Options& options, int num_ranks,
                                         int ranks_per_machine) {
  NetworkBenchOptions bench;
  const auto number = [&](const char* name, int otherwise, int64_t most = kMostCounted) {
    return static_cast<int>(options.whole_number(name, 1, most).value_or(otherwise));
  };
  bench.ranks_per_domain = number("fast-domain-size", ranks_per_machine);
  if (options.whole_number("fast-domain-size", 1) && num_ranks % bench.ranks_per_domain != 0) {
    throw UserError(fmt::format("{}: --fast-domain-size {} must divide the {} processes",
                                kNetworkCommand, bench.ranks_per_domain, num_ranks));
  }
  bench.ulysses_size = number("ulysses-degree", bench.ranks_per_domain);
  bench.ring_size = number("ring-degree", num_ranks / std::max(1, bench.ranks_per_domain));
  bench.shard_size = number("shard-size", num_ranks);
  bench.bytes = int64_t{number("mib", 16, kMostMiB)} << 20;
  bench.repeats = number("repeats", 5);
  if (num_ranks < 2) {
    throw UserError(
        fmt::format("{}: a network has two processes or more; give --ranks 2", kNetworkCommand));
  }
  static_cast<void>(plan_of(bench, num_ranks));
  return bench;
}

int work_of_network_bench(const NetworkBenchOptions& bench, const DeviceChoice& device,
                          const fs::path& folder, const Rendezvous& where) {
  const BenchDevice on = bench_device(device, where.local_rank);
  quiet_c10d();
  end_soon_with_lost_gpus();
  tell_of_lost_gpus([where](const std::string& reason) {
    return fmt::format("Rank {} of {}: {}", where.rank, where.world_size,
                       lost_gpus_message(reason));
  });
  const NetworkBenchResult result = run_network_bench(bench, where, on);
  if (where.rank != 0) return 0;
  const fs::path path = folder / "network.json";
  std::ofstream file(path);
  file << network_json(result);
  file.close();
  if (!file) throw UserError(fmt::format("{}: cannot write {}", kNetworkCommand, path.string()));
  say_bench(fmt::format("{}\n\nThe rates, for the key network_rates: {}", network_table(result),
                        path.string()));
  return 0;
}

}  // namespace

const char* const kBenchNetworkHelp =
    R"(  longspan bench network
  longspan bench network --ranks 16 --ulysses-degree 8 --ring-degree 2

measures groups of processes (world, data, sequence, ring, ulysses, shard, replicas): delay and bytes/s of
their collectives; the links between all processes; and names slow links and cards.

  --ranks P, --device, --share-gpus, --repeats N: as above
  --fast-domain-size D  neighbours on a fast link, such as the key fast_domain_size [the processes of a machine]
  --ulysses-degree U    neighbours that exchange heads [those on a fast link]
  --ring-degree R       of such neighbours [the fast domains]
  --shard-size S        neighbours that divide states [all]
  --mib N               that a process sends at a time [16]
  --output FOLDER       network.json, for the key network_rates [output/network_bench]
)";

int run_bench_network(const Arguments& arguments) {
  const Options options(kNetworkCommand, arguments,
                        {"ranks", "device", "fast-domain-size", "ulysses-degree", "ring-degree",
                         "shard-size", "mib", "repeats", "output"},
                        {}, {"share-gpus"});
  const fs::path folder = options.text("output").value_or(kNetworkFolder);
  if (is_launched()) {
    const Rendezvous where = rendezvous_from_environment();
    NetworkBenchOptions bench;
    DeviceChoice device;
    rank_0_first(where.rank, [&] {
      bench = read_network_options(options, where.world_size,
                                   std::min(where.local_world_size, where.world_size));
      device = read_device(kNetworkCommand, options);
      require_gpus(device, where.processes_on_gpus());
      const auto ranks = options.whole_number("ranks", 1);
      if (ranks && *ranks != where.world_size) {
        throw UserError(fmt::format("{}: --ranks {}, but the launcher started {}", kNetworkCommand,
                                    *ranks, counted(where.world_size, "process")));
      }
      make_output_folder(kNetworkCommand, folder);
    });
    return work_of_network_bench(bench, device, folder, where);
  }
  const DeviceChoice device = read_device(kNetworkCommand, options);
  const LaunchPlan plan = plan_bench(kNetworkCommand, options, device);
  static_cast<void>(read_network_options(options, plan.world_size(), plan.processes_per_node));
  make_output_folder(kNetworkCommand, folder);
  Arguments words{"bench", "network"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  quiet_c10d();
  check_meeting_place(plan);
  launch(plan, words);
}

}  // namespace longspan
