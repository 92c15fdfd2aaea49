#include "longspan/config/problem_place.h"

#include <algorithm>
#include <cctype>

namespace longspan {

namespace {

bool is_letter_of_name(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_';
}

}  // namespace

std::string place_of(std::string_view problem, const std::string& file, const GivenKeys& given) {
  const std::string_view fault = problem.substr(0, problem.find(';'));
  bool in_file = false, in_words = false;
  for (auto begin = fault.begin(); begin != fault.end();) {
    begin = std::find_if(begin, fault.end(), is_letter_of_name);
    const auto end = std::find_if_not(begin, fault.end(), is_letter_of_name);
    const std::string_view word(begin, end);
    in_file |= given.in_file.contains(word);
    in_words |= given.in_words.contains(word);
    begin = end;
  }
  if (!in_file && !in_words) {
    in_file = true;
    in_words = !given.in_words.empty();
  }
  const std::string words = "command line";
  if (!in_file) return words;
  return in_words ? file + " and " + words : file;
}

}  // namespace longspan
