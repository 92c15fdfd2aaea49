// P: ranks of a sequence group, R: ring degree, U: Ulysses degree, N: query heads, M: kv heads, H:
// head dim, t: tokens of a rank's ring share, c: chunk of a document in zigzag order.
#include "longspan/plan/cost_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "longspan/sequence_parallel/padding.h"

namespace longspan {
namespace {

using Mode = SequenceParallelMode;

/// Pairs of a query and a key that are computed, whole tiles.
double rectangle(int64_t queries, int64_t keys, int64_t tile) {
  return static_cast<double>(round_up(queries, tile)) * static_cast<double>(round_up(keys, tile));
}
double triangle(int64_t tokens, int64_t tile) {
  const double n = static_cast<double>(round_up(tokens, tile) / tile);
  return static_cast<double>(tile * tile) * n * (n + 1) / 2;
}

/// One sequence group: ranks base, base + 1, ... of machines of so many ranks.
class GroupCost {
 public:
  GroupCost(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
            const AttentionVolumeParts& volume, const ClusterModel& cluster, int base)
      : plan_(plan),
        shape_(shape),
        padded_(padded),
        volume_(volume),
        cluster_(cluster),
        base_(base) {}

  double seconds() const { return pass(/*backward=*/false) + pass(/*backward=*/true); }

 private:
  int machine(int rank) const { return (base_ + rank) / cluster_.ranks_per_machine; }

  /// How long bytes travel, and how much of that the rank's own cores work at it.
  struct Sending {
    double seconds = 0, copying = 0;
  };

  /// What remains beside `work` that runs at the same time.
  static double exposed(const Sending& sending, double work) {
    return sending.copying + std::max(0.0, sending.seconds - sending.copying - work);
  }

  /// `senders`: ranks of a machine that send to other machines at a time.
  double far_seconds(double bytes, int senders) const {
    const double rate = cluster_.between_bytes / (cluster_.shares_port ? senders : 1);
    return bytes / rate + cluster_.between_delay;
  }

  Sending sending(double bytes, double seconds) const {
    if (!cluster_.copies_cost_work) return {seconds, 0.0};
    const double copying = bytes / cluster_.inside_bytes + cluster_.inside_delay;
    return {std::max(seconds, copying), copying};
  }

  /// Every rank of each run of `size` neighbours sends `bytes`, evenly to the others of its run.
  Sending to_all(double bytes, int size) const {
    double slowest = 0;
    for (int rank = 0; rank < plan_.sequence_size && size > 1; ++rank) {
      const int first = rank / size * size;
      int near = 0;
      for (int other = first; other < first + size; ++other)
        near += machine(other) == machine(rank);
      const double to_one = bytes / (size - 1);
      slowest = std::max(
          {slowest, to_one * (near - 1) / cluster_.inside_bytes + cluster_.inside_delay,
           near < size ? far_seconds(to_one * (size - near), cluster_.ranks_per_machine) : 0.0});
    }
    return sending(bytes, slowest);
  }

  /// Rings of `size` ring ranks, `stride` ring ranks apart: the most ranks of a machine whose next
  /// is on another one.
  int crossings(int size, int stride) const {
    const int R = plan_.ring_size, U = plan_.ulysses_size;
    std::map<int, int> of_machine;
    int most = 0;
    for (int ring_rank = 0; ring_rank < R; ++ring_rank) {
      const int place = ring_rank / stride % size;
      const int next = ring_rank + ((place + 1) % size - place) * stride;
      for (int u = 0; u < U; ++u) {
        const int here = machine(ring_rank * U + u);
        if (here != machine(next * U + u)) most = std::max(most, ++of_machine[here]);
      }
    }
    return most;
  }

  Sending to_next(double bytes, int crossings) const {
    return sending(bytes, crossings > 0 ? far_seconds(bytes, crossings)
                                        : bytes / cluster_.inside_bytes + cluster_.inside_delay);
  }

  double flop_seconds(double pairs, double heads, bool backward) const {
    const double flop = (backward ? 10.0 : 4.0) * static_cast<double>(shape_.head_dim) * heads;
    return flop * pairs / (backward ? cluster_.backward_flops : cluster_.forward_flops);
  }

  /// Query heads that a rank attends with.
  double heads_of_rank() const {
    const int64_t N = shape_.num_heads, P = plan_.sequence_size;
    const double even = static_cast<double>(N) / plan_.ulysses_size;
    if (plan_.mode == Mode::kDummyHeadUlysses) return static_cast<double>((N + P - 1) / P);
    if (plan_.mode == Mode::kXtunerUlysses) return even * plan_.num_head_slices;
    return even;
  }

  /// Pairs of a head in every step of the busiest rank.
  std::vector<double> pairs_of_steps() const {
    const int64_t R = plan_.ring_size, tile = cluster_.tile;
    std::vector<double> steps(plan_.mode == Mode::kLlama3 ? 1 : R, 0.0);
    if (plan_.mode == Mode::kRing) return pairs_of_plain_ring();
    for (int64_t d = 0; d < padded_.num_documents(); ++d) {
      const int64_t length = padded_.length(d);
      if (R == 1) {
        steps[0] += triangle(length, tile);
      } else if (plan_.mode == Mode::kStripedRing) {
        for (double& step : steps) step += triangle((length + R - 1) / R, tile);
      } else {
        const int64_t c = (length + 2 * R - 1) / (2 * R);
        if (plan_.mode == Mode::kLlama3) {
          steps[0] += rectangle(c, (2 * R - 1) * c, tile) + 2 * triangle(c, tile);
        } else {
          for (int64_t step = 0; step < R; ++step) {
            steps[step] += step == 0 ? triangle(2 * c, tile) : rectangle(2 * c, c, tile);
          }
        }
      }
    }
    return steps;
  }

  /// All wait for the rank that sees most in a step: with one document that is nearly twice the
  /// average.
  std::vector<double> pairs_of_plain_ring() const {
    const int64_t R = plan_.ring_size, t = padded_.num_tokens() / R;
    std::vector<double> steps(R, 0.0);
    for (int64_t step = 0; step < R; ++step) {
      for (int64_t rank = step; rank < R; ++rank) {
        const int64_t q_begin = rank * t, k_begin = (rank - step) * t;
        double pairs = 0;
        for (int64_t d = 0; d < padded_.num_documents(); ++d) {
          const int64_t queries =
              std::min(padded_.end(d), q_begin + t) - std::max(padded_.begin(d), q_begin);
          const int64_t keys =
              std::min(padded_.end(d), k_begin + t) - std::max(padded_.begin(d), k_begin);
          if (queries <= 0 || keys <= 0) continue;
          pairs += step == 0 ? triangle(queries, cluster_.tile)
                             : rectangle(queries, keys, cluster_.tile);
        }
        steps[step] = std::max(steps[step], pairs);
      }
    }
    return steps;
  }

  /// Merging a step's output into what there is: five passes over fp32 numbers forward; in the
  /// backward three over the gradients of queries, keys and values.
  double merge_seconds(bool backward) const {
    const double t = static_cast<double>(padded_.num_tokens() / plan_.ring_size);
    const double H = static_cast<double>(shape_.head_dim), query = heads_of_rank();
    const double kv = std::max(1.0, static_cast<double>(shape_.num_kv_heads) / plan_.ulysses_size);
    const double bytes = backward ? t * H * (query + 2 * kv) * 12 : t * H * query * 20;
    return bytes / cluster_.memory_bytes;
  }

  double pass(bool backward) const {
    const int P = plan_.sequence_size, R = plan_.ring_size, U = plan_.ulysses_size;
    const auto bytes_of = [&](const AttentionVolume& volume) {
      return static_cast<double>(backward ? volume.backward : volume.forward) / P;
    };
    std::vector<double> work;
    for (const double pairs : pairs_of_steps()) {
      work.push_back(flop_seconds(pairs, heads_of_rank(), backward) + cluster_.call_seconds);
      if (work.size() > 1) work.back() += merge_seconds(backward);
    }
    if (plan_.mode == Mode::kBalancedUlysses && shape_.num_heads % P != 0) {
      work[0] += 2 * cluster_.call_seconds;  // the parts of heads at both ends
    }
    double context = 0;
    if (plan_.mode == Mode::kLlama3) {
      context = gathering(bytes_of(volume_.context), work[0], backward);
    } else if (R > 1) {
      context = ring(bytes_of(volume_.context) / (R - 1), work, backward);
    } else {
      context = work[0];
    }
    if (U == 1) return context;

    const Sending exchange = to_all(bytes_of(volume_.heads), U);
    if (plan_.mode == Mode::kAsyncUlysses) {
      return context + exposed(exchange, projection_seconds(backward));
    }
    // The first wave arrives, and the last one leaves, under no work.
    const double W = plan_.head_waves;
    return context + exchange.seconds / W + exposed(exchange, context) * (W - 1) / W;
  }

  /// Of q, k, v and o, of a model as wide as its heads together.
  double projection_seconds(bool backward) const {
    const double t = static_cast<double>(padded_.num_tokens() / plan_.sequence_size);
    const double H = static_cast<double>(shape_.head_dim);
    const double N = static_cast<double>(shape_.num_heads),
                 M = static_cast<double>(shape_.num_kv_heads);
    return (backward ? 4.0 : 2.0) * t * N * H * H * (2 * N + 2 * M) / cluster_.forward_flops;
  }

  double ring(double hop_bytes, const std::vector<double>& work, bool backward) const {
    const int R = plan_.ring_size;
    const int W = plan_.mode == Mode::kLoongTrain ? plan_.window_size : 1;
    const int inner = W > 1 ? crossings(W, 1) : crossings(R, 1);
    const Sending hop = to_next(hop_bytes, inner);
    double seconds = 0;
    for (const double step : work) seconds += step;
    if (W == 1) {
      for (int step = 0; step + 1 < R; ++step) seconds += exposed(hop, work[step]);
    } else {
      const Sending outer_hop = to_next(hop_bytes, W < R ? crossings(R / W, W) : 0);
      for (int step = 0; step < R; ++step) {
        if (step % W + 1 < W) seconds += exposed(hop, work[step]);
      }
      for (int pass = 0; pass + 1 < R / W; ++pass) seconds += exposed(outer_hop, W * work.back());
    }
    // The gradients of the last step go home when all work is done; their copies are counted.
    if (backward) {
      const double share = static_cast<double>(shape_.gradient_bytes) /
                           static_cast<double>(shape_.gradient_bytes + shape_.element_bytes);
      const Sending last = to_next(hop_bytes * share, inner);
      seconds += last.seconds - last.copying;
    }
    return seconds;
  }

  double gathering(double bytes, double work, bool backward) const {
    const int R = plan_.ring_size;
    const int64_t at_once = std::max<int64_t>(1, shape_.num_kv_heads / R);
    const auto waves = static_cast<double>((shape_.num_kv_heads + at_once - 1) / at_once);
    const Sending gather = to_all(bytes / waves, R);
    const double calls = (waves - 1) * cluster_.call_seconds;
    // The first keys, and the last gradients, whose copies are counted.
    const double ends = gather.seconds + (backward ? 0.5 * (gather.seconds - gather.copying) : 0.0);
    // What is gathered is put in the order of the row, and gradients back: a read and a write.
    const double row_bytes = static_cast<double>(padded_.num_tokens() * 2 * shape_.num_kv_heads *
                                                 shape_.head_dim * shape_.element_bytes);
    const double reordering = (backward ? 4 : 2) * row_bytes / cluster_.memory_bytes;
    return work + reordering + calls + ends + (waves - 1) * exposed(gather, work / waves);
  }

  const ParallelPlan& plan_;
  const AttentionShape& shape_;
  const Packing& padded_;
  const AttentionVolumeParts& volume_;
  const ClusterModel& cluster_;
  int base_;
};

}  // namespace

ClusterModel cluster_model(bool cuda, int ranks_per_machine, int64_t element_bytes) {
  ClusterModel cluster;
  cluster.ranks_per_machine = ranks_per_machine;
  if (cuda) {
    // Of an A100, from others' figures; nothing here is measured with this program.
    // Attention in 16 bits: FlashAttention-2 (arXiv 2307.08691, figures 4 to 6) reaches 190 TFLOP/s
    // forward and 160 backward with heads of 64 and 128; the tile is its block of queries.
    // Assumed: fp32 at half of the 19.5 TFLOP/s of NVIDIA's A100 data sheet; four fifths of NVLink
    // 3's 300 GB/s each way (same sheet) and of one 200 Gbit/s InfiniBand port a GPU; three
    // quarters of the memory's 2 TB/s (same sheet); the delays and the cost of a call.
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
    // A rank of one core. Measured: the attention rates, of this program's own kernel on a core of
    // an EPYC of 2024 with long rows in fp32 (README, speed); its tile.
    // Assumed: elementwise work at 10 GB/s; Gloo over loopback 1 GB/s a rank, moved by the cores
    // that also compute, to other machines as well; a 10 Gbit/s port a machine, nine tenths used;
    // the delays and the cost of a call. More cores of a rank, and bf16, are not modelled.
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
  return cluster;
}

Packing padded_row(const ParallelPlan& plan, const Packing& row) {
  const int64_t R = plan.ring_size, U = plan.ulysses_size;
  const bool zigzag = R > 1 && plan.mode != Mode::kRing && plan.mode != Mode::kStripedRing;
  if (!zigzag) return pad_tail(row, R * U);
  // Shares of zigzag order are even, and Ulysses cuts each in U.
  return pad_tail(pad_documents(row, 2 * R), R * std::lcm(int64_t{2}, U));
}

double attention_seconds(const ParallelPlan& plan, const AttentionShape& shape, const Packing& row,
                         bool checkpointing, const ClusterModel& cluster) {
  const Packing padded = padded_row(plan, row);
  const AttentionVolumeParts volume = attention_volume_parts(plan, shape, padded, checkpointing);
  std::set<int> seen;  // groups that lie on machines alike
  double slowest = 0;
  for (int base = 0; base < plan.world_size; base += plan.sequence_size) {
    const int place = base % cluster.ranks_per_machine;
    if (!seen.insert(place).second) continue;
    slowest = std::max(slowest, GroupCost(plan, shape, padded, volume, cluster, place).seconds());
  }
  return slowest;
}

}  // namespace longspan
