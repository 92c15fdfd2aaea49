// P: ranks of a sequence group, R: ring degree, U: Ulysses degree, K: elements of a head of queries
// and keys, V: of values, t: tokens of a rank's ring share.
#include "longspan/plan/cost_model.h"

#include <algorithm>
#include <set>

#include "longspan/plan/geometry.h"
#include "longspan/plan/pass_cost.h"
#include "longspan/registers/method.h"

namespace longspan {
namespace {

double flop_seconds(const PassCost& cost, double head_pairs) {
  const FlopCost pair = pair_flops_of(cost.shape.spec);
  return static_cast<double>(cost.backward ? pair.backward : pair.forward) * head_pairs /
         (cost.backward ? cost.cluster.backward_flops : cost.cluster.forward_flops);
}

/// Time of merging a hop's output into the result: five passes over fp32 elements in the forward,
/// three over the gradients of queries, keys and values in the backward. In a sliding window, over
/// the `rows` that saw keys of the hop.
double merge_seconds(const PassCost& cost, double query_heads, int64_t rows) {
  const int64_t share = cost.padded.num_tokens() / cost.plan.ring_size;
  const double t = static_cast<double>(cost.shape.spec.window ? std::min(rows, share) : share);
  const AttentionSpec& spec = cost.shape.spec;
  const double K = static_cast<double>(spec.key_dim), V = static_cast<double>(spec.value_dim);
  const double kv = std::max(1.0, static_cast<double>(spec.num_kv_heads) / cost.plan.ulysses_size);
  const double bytes =
      cost.backward ? t * (K * query_heads + (K + V) * kv) * 12 : t * V * query_heads * 20;
  return bytes / cost.cluster.memory_bytes;
}

double pass_seconds(const PassCost& cost, const RankWork& busiest,
                    const AttentionVolumeParts& volume) {
  const Method& method = *cost.plan.method;
  const auto bytes_of = [&](const AttentionVolume& volume) {
    return static_cast<double>(cost.backward ? volume.backward : volume.forward) /
           cost.plan.sequence_size;
  };
  std::vector<double> work;
  for (size_t hop = 0; hop < busiest.head_pairs.size(); ++hop) {
    const auto calls = static_cast<double>(busiest.calls[hop]);
    work.push_back(flop_seconds(cost, busiest.head_pairs[hop]) + calls * cost.cluster.call_seconds);
    if (hop > 0) work.back() += merge_seconds(cost, busiest.heads, busiest.rows[hop]);
  }
  const double context = method.context_seconds(cost, bytes_of(volume.context), work);
  return method.exchange_seconds(cost, bytes_of(volume.heads), context);
}

}  // namespace

ClusterModel cluster_model(bool cuda, int ranks_per_machine, int64_t element_bytes,
                           const NetworkRates& network) {
  ClusterModel cluster;
  cluster.ranks_per_machine = ranks_per_machine;
  if (cuda) {
    // An A100, from published figures; nothing here is measured with this program. Attention in 16
    // bits: FlashAttention-2 (arXiv 2307.08691, figures 4 to 6) reaches 190 TFLOP/s forward and 160
    // backward with heads of 64 and 128; the tile is its block of queries. Assumed: fp32 at half of
    // the 19.5 TFLOP/s of NVIDIA's A100 data sheet; four fifths of NVLink 3's 300 GB/s each way
    // (same sheet) and of one 200 Gbit/s InfiniBand port per GPU; three quarters of the memory's 2
    // TB/s (same sheet); the delays and the cost of a call.
    cluster.forward_flops = element_bytes == 2 ? 190e12 : 10e12;
    cluster.backward_flops = element_bytes == 2 ? 160e12 : 10e12;
    cluster.memory_bytes = 1.5e12;
    cluster.inside_bytes = 240e9;
    cluster.between_bytes = 20e9;
    cluster.inside_delay = 20e-6;
    cluster.between_delay = 40e-6;
    cluster.call_seconds = 10e-6;
    cluster.tile = 128;
  } else {
    // A rank of one core. Measured: the attention rates of this program's own kernel on a core of
    // an EPYC of 2024 with long rows in fp32 (docs/speed.md), and its tile. Assumed: elementwise
    // work at 10 GB/s; Gloo over loopback, and to other machines, at 1 GB/s per rank on the cores
    // that also compute; a 10 Gbit/s port per machine, nine tenths used; the delays and the cost of
    // a call. Several cores per rank, and bf16, are not modelled.
    cluster.forward_flops = 150e9;
    cluster.backward_flops = 190e9;
    cluster.memory_bytes = 10e9;
    cluster.inside_bytes = 1e9;
    cluster.between_bytes = 1.1e9;
    cluster.inside_delay = 50e-6;
    cluster.between_delay = 100e-6;
    cluster.call_seconds = 20e-6;
    cluster.tile = 64;
    cluster.copies_cost_work = true;
    cluster.shares_port = true;
  }
  const auto measured = [](double rate, double& constant) {
    if (rate > 0) constant = rate;
  };
  measured(network.inside_bytes, cluster.inside_bytes);
  // The ranks of the measurement shared the port.
  measured(network.between_bytes * (cluster.shares_port ? network.ranks_per_machine : 1),
           cluster.between_bytes);
  measured(network.inside_delay, cluster.inside_delay);
  measured(network.between_delay, cluster.between_delay);
  return cluster;
}

Packing padded_row(const ParallelPlan& plan, const Packing& row) {
  return plan.method->padded_row(plan, row);
}

double attention_seconds(const ParallelPlan& plan, const AttentionShape& shape, const Packing& row,
                         bool checkpointing, const ClusterModel& cluster) {
  const Packing padded = padded_row(plan, row);
  const AttentionVolumeParts volume = attention_volume_parts(plan, shape, padded, checkpointing);
  const RankWork busiest = busiest_rank(plan, shape, padded, cluster.tile);
  std::set<int> seen;  // groups at an equivalent place on the machines
  double slowest = 0;
  for (int base = 0; base < plan.world_size; base += plan.sequence_size) {
    const int place = base % cluster.ranks_per_machine;
    if (!seen.insert(place).second) continue;
    double seconds = 0;
    for (const bool backward : {false, true}) {
      seconds += pass_seconds({plan, shape, padded, cluster, place, backward}, busiest, volume);
    }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

}  // namespace longspan
