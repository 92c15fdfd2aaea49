#include "longspan/plan/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/plan/recurrent_volume.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

ClusterModel cluster_of(const PlanRequest& request) {
  return cluster_model(request.cuda, request.ranks_per_machine, request.element_bytes,
                       request.network);
}

class Chooser {
 public:
  Chooser(const PlanRequest& request, ParallelPlan base)
      : request_(request),
        base_(std::move(base)),
        kinds_(kinds_of(request)),
        cluster_(cluster_of(request)) {}

  ParallelPlan asked_for(const Method& method) const {
    check_keys_fit(request_, method);
    for (const Kind& kind : kinds_) check_heads(kind.request, method);
    const std::vector<Candidate> candidates =
        candidates_of(method, degrees_of_all(method.ulysses_degrees, method));
    Candidate best = cheapest(candidates);
    best.plan.reason =
        fmt::format("sequence parallelism: {}{}", describe_method(best.plan),
                    candidates.size() > 1 ? fmt::format(" (degrees chosen for {})", rows()) : "");
    return best.plan;
  }

  ParallelPlan chosen() const {
    const int P = request_.sequence_size;
    const bool degrees = request_.ulysses_degree || request_.ring_degree;
    check_keys_fit_auto(request_);
    std::vector<Candidate> of_methods = cheapest_of_methods();
    if (of_methods.empty()) {
      const int64_t heads = std::min(request_.num_heads, reference_heads());
      throw UserError(fmt::format(
          "sequence_parallel_head_waves: {} is more than {} allow on {}. Give at most {}.",
          *request_.head_waves, counted(heads, "attention head"), counted(P, "rank"), heads));
    }
    const double least = cheapest(of_methods).seconds;
    const auto first = std::ranges::find_if(
        of_methods, [&](const Candidate& c) { return c.seconds <= kEqual * least; });
    Candidate best = *first;
    of_methods.erase(first);

    std::string why;
    const auto add = [&](const std::string& clause) { why += (why.empty() ? "" : "; ") + clause; };
    if (degrees) {
      add("degrees are given");
    } else if (request_.num_heads % P != 0) {
      add(fmt::format("{} {} not divide by {}", counted(request_.num_heads, "head"),
                      request_.num_heads == 1 ? "does" : "do", P));
    }
    if (!degrees && request_.reference && reference_heads() % P != 0) {
      add(fmt::format("of {}, {} {} not divide by {}", request_.reference->name,
                      counted(reference_heads(), "head"), reference_heads() == 1 ? "does" : "do",
                      P));
    }
    // A ratio, because the seconds are estimates for assumed machines (cost_model.h).
    if (!of_methods.empty()) {
      const Candidate& next = cheapest(of_methods);
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
        fmt::format("sequence parallelism: {} (auto): {}{}", describe_method(best.plan), why,
                    request_.network == NetworkRates{} ? "" : "; by measured rates of the network");
    return best.plan;
  }

  /// Returns base_ with other heads.
  ParallelPlan for_heads() const {
    ParallelPlan plan = base_;
    const Method& method = *plan.method;
    for (const Kind& kind : kinds_) check_heads(kind.request, method);
    const std::vector<int> degrees = degrees_of_all(method.ulysses_degrees, method);
    if (std::ranges::find(degrees, plan.ulysses_size) == degrees.end()) {
      throw UserError(fmt::format(
          "sequence_parallel_mode: {} cannot divide {} by {}. Set a mode that takes any number, "
          "for "
          "example zigzag-ring or allgather.",
          method.name, counted(request_.num_heads, "attention head"), plan.ulysses_size));
    }
    plan.head_waves = waves_of(plan);
    complete(plan);
    if (plan.num_head_slices != base_.num_head_slices) {
      throw UserError(fmt::format(
          "sequence_parallel_mode: {} cuts {} and {} in different ways. Take another mode.",
          method.name, counted(request_.num_heads, "attention head"), "those of the other model"));
    }
    return plan;
  }

 private:
  struct Candidate {
    ParallelPlan plan;
    double seconds = 0;
  };

  /// One kind of attention in the model's layers.
  struct Kind {
    PlanRequest request;  // for layers of this kind alone
    AttentionShape shape;
    double share;  // of the layers
  };

  static std::vector<Kind> kinds_of(const PlanRequest& request) {
    std::vector<std::pair<AttentionSpec, int64_t>> layers = request.layers;
    if (layers.empty()) layers.emplace_back(attention_of(request), 1);
    int64_t num_layers = 0;
    for (const auto& [attention, count] : layers) num_layers += count;
    std::vector<Kind> kinds;
    for (const auto& [attention, count] : layers) {
      PlanRequest own = request;
      own.num_heads = attention.num_heads;
      own.num_kv_heads = attention.num_kv_heads;
      own.head_dim = attention.key_dim;
      own.value_dim = attention.value_dim;
      kinds.push_back(
          {std::move(own),
           {attention, request.element_bytes, std::max<int64_t>(4, request.element_bytes)},
           static_cast<double>(count) / static_cast<double>(num_layers)});
    }
    return kinds;
  }

  /// Returns the degrees that serve every kind of layer, ascending.
  std::vector<int> degrees_of_all(std::vector<int> (&degrees_of)(const PlanRequest&, const Method&),
                                  const Method& method) const {
    std::vector<int> degrees = degrees_of(kinds_.front().request, method);
    for (const Kind& kind : kinds_) {
      const std::vector<int> own = degrees_of(kind.request, method);
      std::erase_if(degrees, [&](int d) { return std::ranges::find(own, d) == own.end(); });
    }
    if (degrees.empty() && request_.method != nullptr) {
      throw UserError(fmt::format(
          "sequence_parallel_mode: {} has no degree that serves all layers of this model, whose "
          "numbers of heads differ. Take another mode, or leave it out.",
          method.name));
    }
    return degrees;
  }

  /// Returns the number of heads of the reference's first layers; the largest number without a
  /// reference.
  int64_t reference_heads() const {
    return request_.reference ? request_.reference->layers.front().first.num_heads : INT64_MAX;
  }

  /// Throws UserError if the reference cannot have this plan.
  void require_for_reference(const ParallelPlan& plan) const {
    if (!request_.reference) return;
    try {
      plan_for_heads(plan, with_layers(request_, request_.reference->layers));
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: {}", request_.reference->name, error.what()));
    }
  }

  /// Completes the plan for all kinds of layers. Throws UserError.
  void complete(ParallelPlan& plan) const {
    plan.method->complete(kinds_.front().request, plan);
    for (const Kind& kind : kinds_) {
      ParallelPlan own = plan;
      plan.method->complete(kind.request, own);
      if (own.num_head_slices != plan.num_head_slices) {
        throw UserError(fmt::format(
            "sequence_parallel_mode: {} cuts the heads of this model's layers in different ways, "
            "since their numbers differ. Take another mode, or leave it out.",
            plan.method->name));
      }
      check_waves(kind.request, plan);
    }
  }

  double seconds_of(const ParallelPlan& plan) const {
    double seconds = 0;
    for (const Kind& kind : kinds_) {
      seconds += kind.share * attention_seconds(plan, kind.shape, request_.row,
                                                request_.checkpointing, cluster_);
    }
    return seconds;
  }

  /// Returns the assumed data, e.g. "rows of 1 x 32768 tokens".
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

  /// The precision of the cost model: of methods whose costs differ by less, the simplest is taken.
  static constexpr double kEqual = 1.03;

  static const Candidate& cheapest(const std::vector<Candidate>& candidates) {
    return *std::ranges::min_element(candidates, {}, &Candidate::seconds);
  }

  /// Returns the candidates of auto, simple ones first.
  std::vector<Candidate> cheapest_of_methods() const {
    const bool degrees = request_.ulysses_degree || request_.ring_degree;
    std::vector<Candidate> of_methods;
    for (const Method* method : all_methods()) {
      if (foreign_key(request_, *method) != nullptr) continue;
      const bool splits_all = std::ranges::all_of(kinds_, [&](const Kind& kind) {
        return can_split(*method, request_.sequence_size, kind.shape.spec);
      });
      if (!splits_all) continue;
      const std::vector<int> tried = degrees_of_all(method->auto_degrees, *method);
      const auto candidates = candidates_of(*method, tried, /*among_others=*/!degrees);
      if (!candidates.empty()) of_methods.push_back(cheapest(candidates));
    }
    return of_methods;
  }

  /// Returns the requested number of waves, or the method's default, limited by the heads.
  int waves_of(const ParallelPlan& plan) const {
    if (request_.head_waves) return *request_.head_waves;
    const auto& [own, cuts_heads, most] = plan.method->head_waves;
    int64_t waves = own;
    for (const Kind& kind : kinds_) waves = std::min(waves, most(kind.request.num_heads, plan));
    return static_cast<int>(waves);
  }

  /// Returns the plans of a method, one per Ulysses degree. If all are refused, throws the reason,
  /// unless other methods are tried too.
  std::vector<Candidate> candidates_of(const Method& method, const std::vector<int>& degrees,
                                       bool among_others = false) const {
    const bool choice = degrees.size() > 1 || among_others;
    std::vector<Candidate> candidates;
    std::optional<UserError> refused;
    for (const int degree : std::vector<int>(degrees.rbegin(), degrees.rend())) {
      ParallelPlan plan = base_;
      plan.method = &method;
      plan.ulysses_size = degree;
      plan.ring_size = request_.sequence_size / degree;
      plan.head_waves = waves_of(plan);
      try {
        complete(plan);
        require_for_reference(plan);
      } catch (const UserError& error) {
        if (!choice) throw;
        if (!refused || degree > 1) refused = error;  // degree 1 has no waves
        continue;
      }
      const double seconds = seconds_of(plan);
      candidates.push_back({std::move(plan), seconds});
    }
    if (candidates.empty() && refused && !among_others) throw *refused;
    return candidates;
  }

  const PlanRequest& request_;
  ParallelPlan base_;
  std::vector<Kind> kinds_;
  ClusterModel cluster_;
};

}  // namespace

std::string describe_method(const ParallelPlan& plan) {
  std::string text(plan.method->name);
  for (const MethodKey* key : plan.method->keys) text += key->words(plan);
  return text;
}

bool can_split(const Method& method, int sequence_size, const AttentionSpec& spec) {
  return method.refusal(sequence_size, spec).empty();
}

std::vector<const Method*> methods_that_split(int sequence_size, const AttentionSpec& spec) {
  return methods_that([&](const Method& method) { return can_split(method, sequence_size, spec); });
}

const MethodKey* foreign_key(const PlanRequest& request, const Method& method) {
  for (const MethodKey* key : all_method_keys()) {
    const std::optional<int>& given = request.*key->given;
    if (given && *given > key->idle && !takes(method, *key)) return key;
  }
  return nullptr;
}

AttentionSpec attention_of(const PlanRequest& request) {
  AttentionSpec spec = plain_attention(request.num_heads, request.num_kv_heads, request.head_dim);
  spec.value_dim = request.value_dim.value_or(request.head_dim);
  return spec;
}

namespace {

/// Chooses the estimated faster way for the expected row.
void choose_recurrent_way(const PlanRequest& request, ParallelPlan& plan) {
  const ClusterModel cluster = cluster_of(request);
  const auto seconds = [&](RecurrentWay way) {
    plan.recurrent_way = way;
    return recurrent_seconds(plan, request.row, *request.recurrence, request.element_bytes,
                             request.checkpointing, cluster);
  };
  const double by_states = seconds(RecurrentWay::kStates), by_heads = seconds(RecurrentWay::kHeads);
  const bool passes = by_states < by_heads;
  if (passes) plan.recurrent_way = RecurrentWay::kStates;
  plan.reason += fmt::format(
      "; layers with a recurrence {}, estimated {:.2g} s a layer for {:.2g} s if they {}",
      passes ? "pass states on" : "exchange heads", std::min(by_states, by_heads),
      std::max(by_states, by_heads), passes ? "exchanged heads" : "passed states on");
}

}  // namespace

ParallelPlan make_parallel_plan(const PlanRequest& given) {
  PlanRequest request = given;
  check_world(request.world_size, request.sequence_size);
  ParallelPlan plan;
  plan.world_size = request.world_size;
  plan.sequence_size = request.sequence_size;
  plan.data_size = request.world_size / request.sequence_size;
  plan.shard_size = shard_size_of(request);
  plan.expert_parallel_size = expert_parallel_size_of(request, plan.shard_size);
  if (request.ranks_per_machine < 1) request.ranks_per_machine = request.world_size;
  if (request.sequence_size == 1) {
    check_keys_of_one_rank(request);
    return plan;
  }
  Chooser chooser(request, plan);
  plan = request.method != nullptr ? chooser.asked_for(*request.method) : chooser.chosen();
  if (request.recurrence) choose_recurrent_way(request, plan);
  return plan;
}

ParallelPlan plan_for_heads(const ParallelPlan& plan, const PlanRequest& given) {
  if (plan.sequence_size == 1) return plan;
  PlanRequest request = given;
  request.method = plan.method;
  request.reference.reset();
  if (request.ranks_per_machine < 1) request.ranks_per_machine = request.world_size;
  return Chooser(request, plan).for_heads();
}

PlanRequest with_layers(PlanRequest request,
                        std::vector<std::pair<AttentionSpec, int64_t>> layers) {
  const AttentionSpec& attention = layers.front().first;
  request.num_heads = attention.num_heads;
  request.num_kv_heads = attention.num_kv_heads;
  request.head_dim = attention.key_dim;
  request.value_dim = attention.value_dim;
  request.layers = std::move(layers);
  return request;
}

ParallelPlan make_parallel_plan(int world_size, int sequence_size, const Method* method,
                                int64_t num_heads, int64_t num_kv_heads) {
  PlanRequest request;
  request.world_size = world_size;
  request.sequence_size = sequence_size;
  request.method = method;
  request.num_heads = num_heads;
  request.num_kv_heads = num_kv_heads;
  return make_parallel_plan(request);
}

}  // namespace longspan
