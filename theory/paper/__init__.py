"""The claims of the paper (Xiong et al., 2020) and of later criticism, and their derivations in sympy."""
