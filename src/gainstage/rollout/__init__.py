"""How is experience made?"""
