// SPDX-License-Identifier: Apache-2.0
// The page of the plan that is given as JSON: plan_page_program <plan.json >plan.html
#include <iostream>
#include <iterator>
#include <string>

#include "forecast/plan_page.h"

int main() {
  const std::string json{std::istreambuf_iterator<char>(std::cin), {}};
  std::cout << sherd::plan_page(json) << std::flush;
  return std::cout ? 0 : 1;
}
