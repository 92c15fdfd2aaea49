#include "longspan/plan/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "longspan/config/user_error.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

using Mode = SequenceParallelMode;

class Chooser {
 public:
  Chooser(const PlanRequest& request, ParallelPlan base)
      : request_(request),
        base_(std::move(base)),
        shape_{request.num_heads, request.num_kv_heads, request.head_dim, request.element_bytes,
               std::max<int64_t>(4, request.element_bytes)},
        cluster_(cluster_model(request.cuda, request.ranks_per_machine, request.element_bytes)) {}

  ParallelPlan asked_for(Mode mode) const {
    check_keys_fit(request_, mode);
    check_heads(request_, mode);
    const std::vector<Candidate> candidates = candidates_of(mode);
    Candidate best = cheapest(candidates);
    best.plan.reason =
        fmt::format("sequence parallelism: {}{}", describe_method(best.plan),
                    candidates.size() > 1 ? fmt::format(" (degrees chosen for {})", rows()) : "");
    return best.plan;
  }

  ParallelPlan chosen() const {
    const int P = request_.sequence_size;
    const bool degrees = request_.ulysses_degree || request_.ring_degree;
    if (request_.window_size) {
      throw UserError(fmt::format(
          "sequence_parallel_window_size: {} belongs to sequence_parallel_mode: loongtrain, and no "
          "mode is given. Set sequence_parallel_mode: loongtrain, or remove the window.",
          *request_.window_size));
    }
    std::vector<Candidate> of_modes = cheapest_of_modes();
    if (of_modes.empty()) {
      throw UserError(fmt::format(
          "sequence_parallel_head_waves: {} is more than {} allow on {}. Give at most {}.",
          *request_.head_waves, counted(request_.num_heads, "attention head"), counted(P, "rank"),
          request_.num_heads));
    }
    const double least = cheapest(of_modes).seconds;
    const auto first = std::ranges::find_if(
        of_modes, [&](const Candidate& c) { return c.seconds <= kEqual * least; });
    Candidate best = *first;
    of_modes.erase(first);

    std::string why;
    const auto add = [&](const std::string& clause) { why += (why.empty() ? "" : "; ") + clause; };
    if (degrees) {
      add("degrees are given");
    } else if (request_.num_heads % P != 0) {
      add(fmt::format("{} {} not divide by {}", counted(request_.num_heads, "head"),
                      request_.num_heads == 1 ? "does" : "do", P));
    }
    // A ratio: the seconds are those of assumed machines (cost_model.h), not of the user's.
    if (!of_modes.empty()) {
      const Candidate& next = cheapest(of_modes);
      const std::string name = describe_method(next.plan);
      const double times = next.seconds / best.seconds;
      if (times < 1) {
        add(fmt::format("for {}, simpler than {}, estimated about as fast", rows(), name));
      } else {
        add(fmt::format("for {}, attention is estimated to take {} as long with the next best, {}",
                        rows(), times < 1.005 ? "about" : fmt::format("{:.2f} times", times),
                        name));
      }
    }
    best.plan.reason =
        fmt::format("sequence parallelism: {} (auto): {}", describe_method(best.plan), why);
    return best.plan;
  }

 private:
  struct Candidate {
    ParallelPlan plan;
    double seconds = 0;
  };

  int own_waves(Mode mode) const {
    if (mode != Mode::kAsyncUlysses) return 1;
    return static_cast<int>(
        std::min<int64_t>(kAsyncHeadWaves, request_.num_heads / request_.sequence_size));
  }

  /// What was assumed of the data: "rows of 1 x 32768 tokens".
  std::string rows() const {
    const Packing& row = request_.row;
    for (int64_t d = 1; d < row.num_documents(); ++d) {
      if (row.length(d) != row.length(0)) {
        return fmt::format("rows of {} in {}", counted(row.num_tokens(), "token"),
                           counted(row.num_documents(), "document"));
      }
    }
    return fmt::format("rows of {} x {} tokens", row.num_documents(), row.length(0));
  }

  /// The model knows no better: of modes that cost less than this apart the simplest is taken.
  static constexpr double kEqual = 1.03;

  static const Candidate& cheapest(const std::vector<Candidate>& candidates) {
    return *std::ranges::min_element(candidates, {}, &Candidate::seconds);
  }

  /// The candidates of auto, simple ones first.
  std::vector<Candidate> cheapest_of_modes() const {
    const int P = request_.sequence_size;
    const bool degrees = request_.ulysses_degree || request_.ring_degree;
    const bool waves = request_.head_waves.value_or(1) > 1;
    const bool divide = request_.num_heads % P == 0;
    std::vector<Candidate> of_modes;
    for (const Mode mode :
         {Mode::kUlysses, Mode::kBalancedUlysses, Mode::kZigzagRing, Mode::kUsp, Mode::kLlama3}) {
      if (degrees && mode != Mode::kUsp) continue;
      if (waves && !has_head_waves(mode)) continue;
      if (mode == Mode::kUlysses && !divide) continue;
      // Heads that divide are balanced as they are, unless there are more waves than whole heads.
      if (mode == Mode::kBalancedUlysses && divide && !waves) continue;
      const auto candidates = candidates_of(mode, /*proper=*/!degrees);
      if (!candidates.empty()) of_modes.push_back(cheapest(candidates));
    }
    return of_modes;
  }

  /// The plans of a mode, one for each pair of degrees where these are not given. Without any the
  /// reason is thrown, unless `proper` (for auto: both degrees above 1) leaves none.
  std::vector<Candidate> candidates_of(Mode mode, bool proper = false) const {
    const int P = request_.sequence_size;
    std::vector<int> degrees{is_ring(mode) ? 1 : P};
    if (has_degrees(mode)) degrees = ulysses_degrees(request_, mode);
    const bool choice = degrees.size() > 1 || proper;
    std::vector<Candidate> candidates;
    std::optional<UserError> refused;
    for (const int degree : std::vector<int>(degrees.rbegin(), degrees.rend())) {
      if (proper && mode == Mode::kUsp && (degree == 1 || degree == P)) continue;
      ParallelPlan plan = base_;
      plan.mode = mode;
      plan.ulysses_size = degree;
      plan.ring_size = P / degree;
      plan.head_waves = request_.head_waves.value_or(own_waves(mode));
      if (mode == Mode::kXtunerUlysses) {
        plan.num_head_slices = static_cast<int>(P / std::gcd(request_.num_heads, int64_t{P}));
      }
      try {
        if (mode == Mode::kLoongTrain) {
          plan.window_size = window_of(request_, plan.ring_size, plan.ulysses_size);
        }
        check_waves(request_, plan);
      } catch (const UserError& error) {
        if (!choice) throw;
        if (!refused || degree > 1) refused = error;  // degree 1 has no waves at all
        continue;
      }
      const double seconds =
          attention_seconds(plan, shape_, request_.row, request_.checkpointing, cluster_);
      candidates.push_back({std::move(plan), seconds});
    }
    if (candidates.empty() && !proper) throw *refused;
    return candidates;
  }

  const PlanRequest& request_;
  ParallelPlan base_;
  AttentionShape shape_;
  ClusterModel cluster_;
};

}  // namespace

ParallelPlan make_parallel_plan(const PlanRequest& given) {
  PlanRequest request = given;
  check_world(request.world_size, request.sequence_size);
  ParallelPlan plan;
  plan.world_size = request.world_size;
  plan.sequence_size = request.sequence_size;
  plan.data_size = request.world_size / request.sequence_size;
  plan.shard_size = shard_size_of(request);
  if (request.ranks_per_machine < 1) request.ranks_per_machine = request.world_size;
  if (request.sequence_size == 1) {
    check_keys_of_one_rank(request);
    return plan;
  }
  Chooser chooser(request, plan);
  return request.mode ? chooser.asked_for(*request.mode) : chooser.chosen();
}

ParallelPlan make_parallel_plan(int world_size, int sequence_size,
                                std::optional<SequenceParallelMode> mode, int64_t num_heads,
                                int64_t num_kv_heads) {
  PlanRequest request;
  request.world_size = world_size;
  request.sequence_size = sequence_size;
  request.mode = mode;
  request.num_heads = num_heads;
  request.num_kv_heads = num_kv_heads;
  return make_parallel_plan(request);
}

}  // namespace longspan
