#include "longspan/text/counted.h"

#include "longspan/text/progress_bar.h"

namespace longspan {

std::string noun_of(int64_t number, std::string_view noun) {
  std::string word(noun);
  if (number == 1) return word;
  const std::string_view vowels = "aeiou";
  if (word.ends_with("s") || word.ends_with("x") || word.ends_with("ch")) return word + "es";
  const bool consonant_y = word.size() > 1 && word.ends_with("y") &&
                           vowels.find(word[word.size() - 2]) == std::string_view::npos;
  if (consonant_y) return word.substr(0, word.size() - 1) + "ies";
  return word + "s";
}

std::string counted(int64_t number, std::string_view noun) {
  return with_commas(number) + " " + noun_of(number, noun);
}

}  // namespace longspan
