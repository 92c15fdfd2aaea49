#include "longspan/plan/head_split.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "longspan/attention/sliding_window.h"
#include "longspan/attention/two_way_blocks.h"

namespace longspan {
namespace {

struct TokenRange {
  int64_t begin, end;
  bool operator==(const TokenRange&) const = default;
};

// Some queries of one head, and the keys that they see.
struct HeadQueries {
  int64_t head;
  TokenRange tokens, keys;
};

// By rank and wave.
using Assignment = std::vector<std::vector<std::vector<HeadQueries>>>;

// Keys of one kv head that a rank reads, and the first and last wave that read them.
struct KeyUse {
  int64_t kv_head;
  TokenRange keys;
  int first_wave, last_wave;
};

// Returns the union of the waves' keys for each kv head, so that no key is sent twice.
std::vector<KeyUse> keys_used(const std::vector<std::vector<HeadQueries>>& waves,
                              const std::function<int64_t(int64_t)>& kv_of) {
  std::vector<KeyUse> uses;
  for (size_t wave = 0; wave < waves.size(); ++wave) {
    for (const HeadQueries& queries : waves[wave]) {
      const int at = static_cast<int>(wave);
      uses.push_back({kv_of(queries.head), queries.keys, at, at});
    }
  }
  std::stable_sort(uses.begin(), uses.end(), [](const KeyUse& a, const KeyUse& b) {
    return std::pair(a.kv_head, a.keys.begin) < std::pair(b.kv_head, b.keys.begin);
  });
  std::vector<KeyUse> merged;
  for (const KeyUse& use : uses) {
    KeyUse* last = merged.empty() ? nullptr : &merged.back();
    if (last != nullptr && last->kv_head == use.kv_head && use.keys.begin <= last->keys.end) {
      last->keys.end = std::max(last->keys.end, use.keys.end);
      last->first_wave = std::min(last->first_wave, use.first_wave);
      last->last_wave = std::max(last->last_wave, use.last_wave);
    } else {
      merged.push_back(use);
    }
  }
  return merged;
}

// Neighbouring kv heads with the same tokens and waves become one item.
void add_items(RankShare& share, const std::vector<KeyUse>& uses) {
  const KeyUse* last = nullptr;
  for (const KeyUse& use : uses) {
    const bool joins = last != nullptr && use.kv_head == last->kv_head + 1 &&
                       use.keys == last->keys && use.first_wave == last->first_wave &&
                       use.last_wave == last->last_wave;
    if (joins) {
      share.kv_items.back().num_heads += 1;
    } else {
      const int item = static_cast<int>(share.kv_items.size());
      share.kv_items.push_back({use.kv_head, 1, use.keys.begin, use.keys.end - use.keys.begin});
      share.waves[use.first_wave].fetched.push_back(item);
      share.waves[use.last_wave].released.push_back(item);
    }
    last = &use;
  }
}

int item_with(const std::vector<HeadBlock>& items, int64_t kv_head, TokenRange keys) {
  for (size_t i = 0; i < items.size(); ++i) {
    const HeadBlock& item = items[i];
    if (kv_head >= item.head_begin && kv_head < item.head_begin + item.num_heads &&
        keys.begin >= item.token_begin && keys.end <= item.token_begin + item.num_tokens) {
      return static_cast<int>(i);
    }
  }
  throw std::logic_error("a query without its keys");
}

// Makes pieces from runs of heads that share their kv heads evenly. If a cut between ranks splits a
// group of query heads, there are several pieces, so that no key is repeated.
void add_pieces(RankShare& share, HeadWave& wave, const std::vector<HeadQueries>& heads,
                const std::function<int64_t(int64_t)>& kv_of) {
  for (size_t begin = 0, end = 0; begin < heads.size(); begin = end) {
    const int64_t kv_head = kv_of(heads[begin].head);
    const TokenRange tokens = heads[begin].tokens;
    while (end < heads.size() && heads[end].tokens == tokens && kv_of(heads[end].head) == kv_head) {
      ++end;
    }
    const auto count = static_cast<int64_t>(end - begin);
    const int item = item_with(share.kv_items, kv_head, heads[begin].keys);
    const int64_t place = kv_head - share.kv_items[item].head_begin;
    AttentionPiece* last = wave.pieces.empty() ? nullptr : &wave.pieces.back();
    if (last != nullptr && last->kv_item == item && place == last->kv_begin + last->num_kv &&
        last->query.num_heads == last->num_kv * count && last->query.token_begin == tokens.begin &&
        last->query.num_tokens == tokens.end - tokens.begin) {
      last->query.num_heads += count;
      last->num_kv += 1;
    } else {
      wave.pieces.push_back(
          {{heads[begin].head, count, tokens.begin, tokens.end - tokens.begin}, item, place, 1});
    }
  }
}

HeadSplit make_split(const Assignment& assignment, const std::function<int64_t(int64_t)>& kv_of) {
  HeadSplit split;
  for (const auto& waves : assignment) {
    RankShare share;
    share.waves.resize(waves.size());
    add_items(share, keys_used(waves, kv_of));
    for (size_t wave = 0; wave < waves.size(); ++wave) {
      add_pieces(share, share.waves[wave], waves[wave], kv_of);
    }
    split.push_back(std::move(share));
  }
  return split;
}

HeadSplit split_whole_heads(int num_ranks, int64_t num_heads, int64_t num_tokens, int head_waves,
                            const std::function<int64_t(int64_t)>& kv_of) {
  const int64_t n = num_heads / num_ranks;
  if (num_heads % num_ranks != 0 || head_waves < 1 || head_waves > n) {
    throw std::logic_error("heads do not divide among ranks, or more waves than heads");
  }
  Assignment assignment(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int wave = 0; wave < head_waves; ++wave) {
      auto& queries = assignment[rank].emplace_back();
      for (int64_t i = wave * n / head_waves; i < (wave + 1) * n / head_waves; ++i) {
        queries.push_back({rank * n + i, {0, num_tokens}, {0, num_tokens}});
      }
    }
  }
  return make_split(assignment, kv_of);
}

// Pairs of a query and a key that it sees among the first `length` tokens of a document.
double triangle(int64_t length) {
  return 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
}

// Finds the place in a row before which a given share of its causal cost lies.
class CostLine {
 public:
  CostLine(const Packing& packing, std::optional<int64_t> window)
      : packing_(packing), window_(window) {
    for (int64_t d = 0; d < packing.num_documents(); ++d) {
      before_.push_back(before_.back() + cost_of_first(packing.length(d), d));
    }
  }

  /// Returns the first token after the cut; exact to half a token.
  int64_t cut(double share) const {
    const double target = share * before_.back();
    const auto document = std::min<int64_t>(
        std::upper_bound(before_.begin(), before_.end(), target) - before_.begin() - 1,
        packing_.num_documents() - 1);
    const double cost = target - before_[document];
    const int64_t x =
        window_ ? queries_in_window(cost, document) : std::llround(queries_of(cost, document));
    return packing_.begin(document) + std::clamp<int64_t>(x, 0, packing_.length(document));
  }

 private:
  /// Cost of the first `length` queries of a document.
  double cost_of_first(int64_t length, int64_t document) const {
    const std::vector<TreeSegment>& tree = packing_.tree(document);
    if (tree.empty()) return of_positions(0, length);
    double cost = 0;
    for (const TreeSegment& segment : tree) {
      if (segment.begin >= length) break;
      cost += of_positions(segment.begin - segment.shift,
                           std::min(segment.end, length) - segment.shift);
    }
    return cost;
  }

  /// Pairs of the queries at positions [begin, end).
  double of_positions(int64_t begin, int64_t end) const {
    return window_ ? in_window(end) - in_window(begin) : triangle(end) - triangle(begin);
  }

  /// Returns the x for which cost_of_first(x) = cost.
  double queries_of(double cost, int64_t document) const {
    const auto positions_of = [](double pairs) {
      return (std::sqrt(8.0 * pairs + 1.0) - 1.0) / 2.0;
    };
    const std::vector<TreeSegment>& tree = packing_.tree(document);
    for (const TreeSegment& segment : tree) {
      const int64_t first = segment.begin - segment.shift;
      const double own = of_positions(first, segment.end - segment.shift);
      if (cost <= own || &segment == &tree.back()) {
        return positions_of(triangle(first) + cost) + static_cast<double>(segment.shift);
      }
      cost -= own;
    }
    return positions_of(cost);
  }

  /// Pairs of the first `length` positions in a window.
  double in_window(int64_t length) const {
    const int64_t growing = std::min(length, *window_);
    return triangle(growing) +
           static_cast<double>(length - growing) * static_cast<double>(*window_);
  }

  /// Returns the least x for which cost_of_first(x) >= cost.
  int64_t queries_in_window(double cost, int64_t document) const {
    int64_t low = 0, high = packing_.length(document);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (cost_of_first(middle, document) < cost) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  const Packing& packing_;
  std::optional<int64_t> window_;
  std::vector<double> before_{0.0};
};

}  // namespace

HeadSplit split_evenly(int num_ranks, int64_t num_heads, int64_t num_kv_heads, int64_t num_tokens,
                       int head_waves) {
  const int64_t group = num_heads / num_kv_heads;
  return split_whole_heads(num_ranks, num_heads, num_tokens, head_waves,
                           [group](int64_t head) { return head / group; });
}

HeadSplit split_with_dummy_heads(int num_ranks, int64_t num_heads, int64_t num_kv_heads,
                                 int64_t num_tokens, int head_waves) {
  const int64_t group = num_heads / num_kv_heads;
  const int64_t padded = (num_heads + num_ranks - 1) / num_ranks * num_ranks;
  return split_whole_heads(num_ranks, padded, num_tokens, head_waves,
                           [=](int64_t head) { return std::min(head / group, num_kv_heads - 1); });
}

HeadSplit split_by_cost(int num_ranks, int64_t num_heads, int64_t num_kv_heads,
                        const Packing& packing, int head_waves, std::optional<int64_t> window) {
  const int64_t T = packing.num_tokens(), group = num_heads / num_kv_heads;
  const int64_t num_parts = int64_t{num_ranks} * head_waves;
  const CostLine line(packing, window);
  // The head and the token at which part i begins.
  const auto begin_of = [&](int64_t part) {
    const int64_t position = part * num_heads, head = position / num_parts;
    const int64_t rest = position % num_parts;
    const double share = static_cast<double>(rest) / static_cast<double>(num_parts);
    return std::pair(head, rest == 0 ? int64_t{0} : line.cut(share));
  };
  Assignment assignment(num_ranks, std::vector<std::vector<HeadQueries>>(head_waves));
  for (int64_t part = 0; part < num_parts; ++part) {
    auto& queries = assignment[part / head_waves][part % head_waves];
    const auto [first_head, first_token] = begin_of(part);
    const auto [last_head, end_token] = begin_of(part + 1);
    for (int64_t head = first_head; head <= last_head; ++head) {
      const int64_t begin = head == first_head ? first_token : 0;
      const int64_t end = head == last_head ? end_token : T;
      if (begin >= end) continue;
      queries.push_back(
          {head,
           {begin, end},
           {first_key_seen(begin, end, packing, window), end_of_keys_seen(begin, end, packing)}});
    }
    // An empty part still joins every exchange.
    if (queries.empty()) queries.push_back({std::min(first_head, num_heads - 1), {0, 0}, {0, 0}});
  }
  return make_split(assignment, [group](int64_t head) { return head / group; });
}

}  // namespace longspan
